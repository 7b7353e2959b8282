"""Imports only go to lower layers, as the docstrings of the package and of `resources` say."""

import ast
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import workbench
import workbench.resources

PACKAGE = Path(workbench.__file__).parent
ONLY = {
    # of `cluster`, only `kept`; of `timings`, only where runs are, and which files users download
    "server": {"resources", "schema", "doctor", "errors", "cluster", "timings"},
    "rank": {"wire", "resources", "safefiles", "errors"},
    "agent": {"rank", "wire", "resources", "redaction", "errors", "logs"},
}
RESOURCES = PACKAGE / "resources"
BESIDE = {("pcie", "gpus"), ("processes", "gpus")}  # within resources, on one layer
DOCUMENTED = (
    *("agent", "hosts", "output", "cluster", "cluster/backends", "cluster/launchers"),
    "cluster/evidence",
    *("rank", "rank/backends", "rank/recording"),
)
HEAVY = ["torch", "horovod", "plotly", "pandas", "pyarrow", "pynvml", "numpy", "ipyparallel", "zmq"]


def layers():
    """Each package's layer, from the table in the docstring."""
    found = {}
    for line in workbench.__doc__.splitlines():
        row = re.match(r"(\d)\s+(`.+?`)\s{2,}", line)
        if row:
            for name in re.findall(r"`([\w]+)(?:/|\.py)`", row[2]):
                found[name] = int(row[1])
    return found


def package_of(path):
    """The package or top-level module that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


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


def test_every_package_is_in_the_table():
    """A new folder or module must be given its layer."""
    assert {package_of(path) for path in modules()} == set(layers())


def test_imports_run_downward():
    """A module imports only from lower layers, and some only from a few packages."""
    level = layers()
    offenders = [
        f"{path}:{line} imports {name}"
        for path in modules()
        for (name, *_), line in imports(path)
        if name != (own := package_of(path)) and not name.startswith("_")
        if level[name] >= level[own] or name not in ONLY.get(own, level)
    ]
    assert not offenders, "\n".join(offenders)


def loads(path):
    """The modules that a file imports, by a statement or by name, with the line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield node.module or "", node.lineno
        elif isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if function in {"import_module", "find_spec", "__import__"}:
                yield str(node.args[0].value), node.lineno


def test_only_backends_import_horovod():
    """Not even late; `horovod_build` is about Horovod itself."""
    offenders = [
        f"{path}:{line} imports {name}"
        for path in PACKAGE.rglob("*.py")
        if not {"backends", "horovod_build"} & set(path.relative_to(PACKAGE).parts[:-1])
        for name, line in loads(path)
        if name.split(".")[0] == "horovod"
    ]
    assert not offenders, "\n".join(offenders)


def test_backends_are_loaded_when_they_are_chosen():
    """Modules that the kernel, the agent and a rank always run load none of them."""
    modules = ["agent.program", "cluster.engines", "rank.control", "rank.session"]
    names = ", ".join(f"workbench.{name}" for name in modules)
    code = f"import sys, {names}; print([m for m in sys.modules if m.split('.')[0] == 'horovod'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def inner_layers():
    """The layer of each module and folder of `resources`, by its docstring."""
    floors = re.split(r"^(\d)\. ", workbench.resources.__doc__, flags=re.MULTILINE)[1:]
    pairs = zip(floors[::2], floors[1::2], strict=True)
    return {name: int(floor) for floor, text in pairs for name in re.findall(r"`(\w+)/?`", text)}


def inner_package_of(path):
    return path.relative_to(RESOURCES).parts[0].removesuffix(".py")


def inner_modules():
    return [path for path in RESOURCES.rglob("*.py") if path != RESOURCES / "__init__.py"]


def test_every_module_of_resources_has_its_layer():
    assert {inner_package_of(path) for path in inner_modules()} == set(inner_layers())


def test_imports_within_resources_never_go_up():
    """Nor from one part of a machine to another, but to the GPUs."""
    level = inner_layers()
    offenders = []
    for path in inner_modules():
        own = inner_package_of(path)
        for (package, *names), line in imports(path):
            if package != "resources" or names[0] == own:
                continue
            both_folders = (RESOURCES / own).is_dir() and (RESOURCES / names[0]).is_dir()
            beside = both_folders and (own, names[0]) not in BESIDE
            if level[names[0]] > level[own] or beside:
                offenders.append(f"{path}:{line} imports {names[0]} from {own}")
    assert not offenders, "\n".join(offenders)


def documented_packages():
    found = [RESOURCES / name for name in ("gpus", "host", "nics", "pcie", "processes")]
    return [*found, *(PACKAGE / name for name in DOCUMENTED)]


@pytest.mark.parametrize(
    "package", documented_packages(), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_a_package_names_its_modules(package):
    """A package's docstring names all of its modules, and no others."""
    there = {path.stem for path in package.glob("*.py")} - {"__init__"}
    there |= {path.parent.name for path in package.glob("*/__init__.py")}
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text()))
    assert set(re.findall(r"`([a-z]\w*)/?`", text)) == there


def dependencies(path):
    """The modules that a module imports, those for type checkers and within functions included."""
    own = module_name(path)
    names = {module_name(other) for other in modules()}
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in names else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return (found & names) - {own}


def module_name(path):
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
        ".__init__"
    )


def test_no_module_imports_itself_by_way_of_others():
    """There is no cycle of imports between files."""
    graph = {module_name(path): dependencies(path) for path in modules()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


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
