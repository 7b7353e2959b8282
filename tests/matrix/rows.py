"""The rows of the matrix: which environment, and what is run in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import browser_checks, checks

if TYPE_CHECKING:
    from .environments import Environment

Check = Callable[["Environment"], str]

NO_TORCH = (
    "what needs PyTorch (ranks, live view): for this Python, PyPI has PyTorch for x86-64 "
    "only as CUDA builds of several GB, and this machine has a CPU build for Python 3.11 only"
)
# The newest CPU build that this machine has; any other is a CUDA build of several GB.
TORCH = ("torch==2.13.0",)

CHECKS: dict[str, Check] = {
    "import": checks.imports,
    "command line": checks.command_line,
    "tests": checks.tests,
    "panel": browser_checks.panel,
    "Horovod": checks.horovod,
    "demo": checks.demo,
    "Notebook 7": browser_checks.notebook_7,
    "JupyterHub": browser_checks.jupyterhub,
    "IPython": checks.ipython,
    "nbconvert": checks.nbconvert,
    "papermill": checks.papermill,
}
WITHOUT_TORCH = ("import", "command line", "panel", "tests")


@dataclass(frozen=True)
class Row:
    """An environment and its checks; `not_run` says what cannot be run there, and why."""

    name: str
    python: str
    checks: tuple[str, ...]
    requirements: tuple[str, ...] = ()
    with_torch: bool = False
    oldest: bool = False
    not_run: str = ""


ROWS = (
    *(
        Row(f"Python {version}, newest packages", version, WITHOUT_TORCH, not_run=NO_TORCH)
        for version in ("3.10", "3.12", "3.13")
    ),
    Row(
        "Python 3.11, newest packages", "3.11",
        (*WITHOUT_TORCH, "Horovod", "demo", "IPython", "nbconvert"), TORCH, with_torch=True,
    ),
    Row("Python 3.10, oldest packages", "3.10", WITHOUT_TORCH, oldest=True, not_run=NO_TORCH),
    Row("Python 3.11, oldest packages", "3.11", WITHOUT_TORCH, oldest=True,
        not_run="what needs PyTorch: the next rows have PyTorch with these packages"),
    Row(
        "JupyterLab 4.4", "3.11", ("panel", "Horovod", "demo"),
        (*TORCH, "jupyterlab==4.4.*"), with_torch=True,
    ),
    Row("JupyterLab 4.5", "3.11", ("import", "panel"), ("jupyterlab==4.5.*",), not_run="ranks"),
    Row(
        "PyTorch 2.4", "3.11", ("import", "Horovod", "demo"), ("torch==2.4.*",), with_torch=True,
    ),
    Row(
        "PyTorch 2.14", "3.11", ("import", "Horovod", "demo"), ("torch==2.14.*",),
        with_torch=True,
    ),
    Row(
        "Notebook 7", "3.11", ("Horovod", "Notebook 7"), (*TORCH, "notebook>=7,<8"),
        with_torch=True,
    ),
    Row(
        "JupyterHub with a base URL", "3.11", ("JupyterHub",), ("jupyterhub>=5",),
        not_run="ranks: they are local to the user's server, as in the other rows",
    ),
    Row("papermill", "3.11", ("Horovod", "papermill"), (*TORCH, "papermill>=2.6"), with_torch=True),
)  # fmt: skip
