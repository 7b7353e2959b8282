"""Every import is declared in pyproject.toml, where the code is used."""

import ast
import sys
from importlib.metadata import packages_distributions

import pytest
from environments import NOTEBOOK, RANK, ROOT, project_table
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

OWN = {"gradient-workbench", "horovod"}  # `workbench build-horovod` installs Horovod
USERS = ["notebooks", "mlflow", "tensorboard"]
ON_A_VM = [
    f"workbench/{part}"
    for part in ("agent", "rank", "wire", "resources", "doctor", "horovod_build", "cli.py")
]
pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Python 3.10 finds few packages' distributions"
)


def declared(project, *extras):
    """The names of a project's dependencies and of its extras."""
    table = project_table(project)
    lines = list(table["dependencies"])
    for extra in extras:
        lines += table["optional-dependencies"][extra]
    return {canonicalize_name(Requirement(line).name): Requirement(line) for line in lines}


def sources(parts):
    """The Python files among and below parts of this tree."""
    for path in map(ROOT.joinpath, parts):
        yield from [path] if path.is_file() else path.rglob("*.py")


def imported(path):
    """The top-level names that a file imports, wherever in its text, with the line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.split(".")[0], node.lineno
        elif isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], node.lineno) for alias in node.names)
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) == "importlib.import_module"
            and isinstance(node.args[0], ast.Constant)
        ):
            yield node.args[0].value.split(".")[0], node.lineno


def undeclared(paths, names):
    """The imports that come from none of the named distributions."""
    distributions = packages_distributions()
    known = {"workbench", "tests", *sys.stdlib_module_names}
    known |= {path.stem for path in (ROOT / "tests").rglob("*.py")}
    known |= {path.parent.name for path in (ROOT / "tests").rglob("*.py")}
    known |= {path.stem for path in (ROOT / "docs" / "_ext").iterdir()}
    for path in paths:
        for name, line in imported(path):
            found = {canonicalize_name(one) for one in distributions.get(name, [name])}
            if name not in known and not found & (OWN | set(names)):
                yield f"{path.relative_to(ROOT)}:{line} imports {name} ({', '.join(found)})"


@pytest.mark.parametrize(
    ("parts", "project", "extras"),
    [
        (["workbench"], NOTEBOOK, USERS),
        (["tests"], NOTEBOOK, [*USERS, "dev"]),
        (ON_A_VM, RANK, []),
    ],
    ids=["gradient-workbench", "its tests", "gradient-workbench-rank"],
)
def test_every_import_is_declared(parts, project, extras):
    """A package that only comes with another one would be missing when that one drops it."""
    offenders = sorted(undeclared(sources(parts), declared(project, *extras)))
    assert not offenders, "\n".join(offenders)


def test_the_notebook_has_all_that_a_vm_has():
    """The second list of dependencies is part of the first, with the same bounds."""
    all_of_it, part = declared(NOTEBOOK), declared(RANK)
    assert part == {name: all_of_it.get(name) for name in part}
    assert not {"jupyterlab", "pandas", "plotly", "ipywidgets", "anywidget"} & set(part)
