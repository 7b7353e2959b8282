"""What is run in an environment. Each check returns what it has seen, or raises `CheckFailed`."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING

import nbformat

from .environments import ROOT, CheckFailed, Environment

if TYPE_CHECKING:
    from pathlib import Path

QUICKSTART = ROOT / "notebooks/01-quickstart.ipynb"
PUBLIC = """
import workbench
print(len([getattr(workbench, name) for name in workbench.__all__]))
"""
# Files whose tests use no ranks, no PyTorch, and nothing that only the tests' environment has.
TESTS = ("doctor", "resources", "wire/test_wire.py")
SESSION = """\
%load_ext workbench
cluster = %cluster start -n 2
%%distributed
import torch
tensor = hvd.allreduce(torch.ones(1000) * (rank + 1), op=hvd.Sum)
print("the sum is", int(tensor[0]))

%cluster stop
"""
COST = re.compile(r"An iteration takes [\d.]+ ms")


def imports(environment: Environment) -> str:
    """Every public name is imported."""
    count = environment.run(environment.python, "-c", PUBLIC).strip()
    return f"{count} public names"


def command_line(environment: Environment) -> str:
    """`workbench resources`, `doctor` and `plan`, and a snapshot that is read again."""
    workbench = environment.python.parent / "workbench"
    text = environment.run(workbench, "resources", "--json")
    snapshot = environment.folder / "vm.json"
    snapshot.write_text(text)
    environment.run(workbench, "resources", snapshot)
    doctor = json.loads(environment.run(workbench, "doctor", "--json", snapshot))
    plan = environment.run(workbench, "plan", "340M", "--gbps", "25", "--vms", "4")
    if len(doctor["vms"]) != 1 or "VM" not in plan:
        raise CheckFailed("doctor or plan printed something else")
    return f"snapshot of {len(text) // 1000} KB, doctor, plan"


def tests(environment: Environment) -> str:
    """The tests of the doctor, of hardware and of the wire format, run with the wheel."""
    files = [ROOT / "tests" / name for name in TESTS]
    said = environment.run(
        environment.python, "-m", "pytest", "-q", "-c", ROOT / "pyproject.toml",
        "-p", "no:cacheprovider", "-m", "not slow and not timing and not browser", *files,
    )  # fmt: skip
    last = said.strip().splitlines()[-1]
    found = re.search(r"\d+ passed(, \d+ skipped)?", last)
    if found is None:
        raise CheckFailed(last)
    return found[0]


def horovod(environment: Environment) -> str:
    """`workbench build-horovod` builds Horovod for the PyTorch of the environment, or has it."""
    environment.run(environment.python, "-m", "ensurepip", "--default-pip")
    workbench = environment.python.parent / "workbench"
    environment.run(workbench, "build-horovod")
    return environment.run(workbench, "build-horovod", "--check").strip().splitlines()[0]


def demo(environment: Environment) -> str:
    """`workbench demo`: the quickstart on two ranks."""
    workbench = environment.python.parent / "workbench"
    page = environment.folder / "page.html"
    return _cost(environment.run(workbench, "demo", "--html", page))


def ipython(environment: Environment) -> str:
    """IPython in a terminal, without Jupyter: two ranks add a tensor."""
    command = [environment.python, "-m", "IPython", "--simple-prompt", "--no-banner"]
    said = environment.run(*command, text=SESSION)
    if "the sum is 3" not in said:
        raise CheckFailed(f"the ranks printed no sum: {said[-200:]}")
    return "two ranks add a tensor"


def nbconvert(environment: Environment) -> str:
    """`jupyter nbconvert --execute` of the quickstart."""
    shutil.copy(QUICKSTART, environment.folder / "in.ipynb")
    environment.run(
        environment.python, "-m", "nbconvert", "--to", "notebook", "--execute", "in.ipynb",
        "--output", "out.ipynb",
    )  # fmt: skip
    return _cost(_text_of(environment.folder / "out.ipynb"))


def papermill(environment: Environment) -> str:
    """Papermill on the quickstart."""
    shutil.copy(QUICKSTART, environment.folder / "in.ipynb")
    command = [environment.python, "-m", "papermill", "--no-progress-bar", "in.ipynb"]
    environment.run(*command, "out.ipynb")
    return _cost(_text_of(environment.folder / "out.ipynb"))


def _text_of(notebook: Path) -> str:
    cells = nbformat.read(notebook, as_version=4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    return "".join(output.get("text", "") for output in outputs)


def _cost(text: str) -> str:
    found = COST.search(text)
    if found is None:
        raise CheckFailed(f"no cost was printed: {text[-200:]}")
    return "the quickstart ends in its cost"
