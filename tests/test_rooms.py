"""The house rule: imports run strictly downward, as the package's docstring draws it.

So does that of a room that has rooms of its own: `resources`.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import workbench
import workbench.resources

PACKAGE = Path(workbench.__file__).parent
ONLY = {
    "server": {"resources", "doctor", "errors"},
    "rank": {"wire", "resources", "errors"},
}
RESOURCES = PACKAGE / "resources"
BESIDE = {("pcie", "gpus"), ("processes", "gpus")}  # within resources, on one floor
HEAVY = ["torch", "horovod", "plotly", "pandas", "pyarrow", "pynvml", "numpy", "ipyparallel", "zmq"]


def floors():
    """Each room's floor, read from the table in the package's docstring."""
    found = {}
    for line in workbench.__doc__.splitlines():
        row = re.match(r"(\d)\s+(`.+?`)\s{2,}", line)
        if row:
            for name in re.findall(r"`([\w]+)(?:/|\.py)`", row[2]):
                found[name] = int(row[1])
    return found


def room(path):
    """The room that a module belongs to."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports(path):
    """The names that a module imports from, in parts, wherever in its text, with the line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module in ("workbench", "workbench.resources"):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "workbench" and len(parts) > 1:
                yield parts[1:], node.lineno


def modules():
    return [path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem[0] != "_"]


def test_every_room_is_in_the_table():
    """A new folder or module must be given its floor."""
    assert {room(path) for path in modules()} == set(floors())


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_downward(path):
    """A module imports only from rooms on floors below its own, and some only from a few."""
    own, level = room(path), floors()
    for (name, *_), line in imports(path):
        if name == own or name.startswith("__"):
            continue
        assert level[name] < level[own], f"{path}:{line} imports {name} from {own}"
        assert name in ONLY.get(own, level), f"{path}:{line}: {own} may not import {name}"


def inner_floors():
    """The floor of each module and folder of `resources`, by its docstring."""
    floors = re.split(r"^(\d)\. ", workbench.resources.__doc__, flags=re.MULTILINE)[1:]
    pairs = zip(floors[::2], floors[1::2], strict=True)
    return {name: int(floor) for floor, text in pairs for name in re.findall(r"`(\w+)/?`", text)}


def inner_room(path):
    return path.relative_to(RESOURCES).parts[0].removesuffix(".py")


def inner_modules():
    return [path for path in RESOURCES.rglob("*.py") if path != RESOURCES / "__init__.py"]


def test_every_module_of_resources_has_its_floor():
    assert {inner_room(path) for path in inner_modules()} == set(inner_floors())


@pytest.mark.parametrize("path", inner_modules(), ids=lambda path: str(path.relative_to(RESOURCES)))
def test_imports_within_resources_never_go_up(path):
    """Nor from one part of a machine to another, but to the GPUs."""
    own, level = inner_room(path), inner_floors()
    for (room, *names), line in imports(path):
        if room != "resources" or names[0] == own:
            continue
        where = f"{path}:{line} imports {names[0]} from {own}"
        assert level[names[0]] <= level[own], where
        if (RESOURCES / own).is_dir() and (RESOURCES / names[0]).is_dir():
            assert (own, names[0]) in BESIDE, where


@pytest.mark.parametrize(
    "door", sorted(RESOURCES.glob("*/__init__.py")), ids=lambda d: d.parent.name
)
def test_the_doors_of_resources_name_their_modules(door):
    """What a folder's docstring names is there, and all that is there is named."""
    there = {path.stem for path in door.parent.glob("*.py")} - {"__init__"}
    assert set(re.findall(r"`(\w+)`", ast.get_docstring(ast.parse(door.read_text())))) == there


def test_the_package_loads_nothing_heavy():
    """`import workbench` leaves everything that is slow to load alone."""
    code = f"import sys, workbench; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there():
    """All that the package promises can be had, and nothing else."""
    for name in workbench.__all__:
        assert getattr(workbench, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        workbench.no_such_name  # noqa: B018
