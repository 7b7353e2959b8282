"""Wheels of this tree, and environments that have only what a distribution declares."""

import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT
RANK = ROOT / "distributions/rank"
FRONT_END = ROOT / "workbench/labextension/package.json"


def project_table(project):
    """The `project` table of a pyproject.toml, for tests in Python 3.11 and later."""
    tomllib = pytest.importorskip("tomllib")
    return tomllib.loads((project / "pyproject.toml").read_text())["project"]


def build_wheel(project, folder):
    """Build the wheel of a project without a network."""
    if find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed here: pip install hatchling")
    if project == NOTEBOOK and not FRONT_END.exists():
        pytest.skip("the front end is not built here: cd labextension && jlpm build:prod")
    pip("wheel", "--no-build-isolation", "--wheel-dir", folder, project)
    (wheel,) = folder.glob("*.whl")
    return wheel


def pip(*arguments, python=sys.executable):
    """Run pip for an interpreter, without a network and without dependencies."""
    command = [sys.executable, "-m", "pip", "--quiet", "--python", python, *arguments]
    subprocess.run([*command, "--no-index", "--no-deps"], check=True, timeout=120)


def environment_of(wheel, folder, *, besides=()):
    """An environment with a wheel, with what it requires, and with `besides`; its interpreter.

    What it requires is linked from the environment of the tests, so nothing is downloaded.
    """
    venv.create(folder, with_pip=False)
    python = folder / "bin/python"
    pip("install", wheel, python=python)
    site = Path(sysconfig.get_path("purelib", vars={"base": folder}))
    (information,) = site.glob("gradient_workbench*.dist-info")
    for found in required([*Distribution.at(information).requires, *besides]):
        for name in {file.parts[0] for file in found.files} - {"..", "__pycache__"}:
            if not (site / name).exists():
                (site / name).symlink_to(found.locate_file(name))
    return python


def required(requirements):
    """The installed distributions that requirements lead to, directly or not."""
    found = {}
    waiting = [(Requirement(text), "") for text in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        for wanted in requirement.extras | {""}:
            if (requirement.name, wanted) not in found:
                try:
                    there = distribution(requirement.name)
                except PackageNotFoundError:
                    pytest.skip(f"{requirement.name} is not installed here")
                found[requirement.name, wanted] = there
                waiting += [(Requirement(text), wanted) for text in there.requires or ()]
    return {there.name: there for there in found.values()}.values()
