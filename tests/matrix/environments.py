"""Environments: a Python of this machine, the wheel of this tree, and versions of packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build/matrix"
SHOWN = (
    *("torch", "jupyterlab", "notebook", "jupyterhub", "ipykernel", "ipyparallel", "ipython"),
    *("numpy", "pandas", "plotly", "ipywidgets", "anywidget", "nbconvert", "papermill"),
)
VERSIONS = """
import sys, platform
from importlib.metadata import version, PackageNotFoundError
print("Python", platform.python_version())
for name in sys.argv[1:]:
    try:
        print(name, version(name))
    except PackageNotFoundError:
        pass
"""
COMMAND_S = 900
LONGEST_REASON = 300


class CheckFailed(Exception):
    """What does not work, and why."""


class Environment:
    """A virtual environment with the wheel, made by `uv` and removed when it is left.

    Parameters
    ----------
    folder
        Where it is made.
    python
        The version of Python, such as ``"3.11"``.
    requirements
        Besides the wheel: requirements that choose versions of what it depends on.
    with_torch
        Whether PyTorch is installed, for which there must be a build that the machine can hold.
    oldest
        Whether the oldest versions that pyproject.toml allows are installed, not the newest.
    """

    def __init__(
        self,
        folder: Path,
        python: str,
        requirements: tuple[str, ...] = (),
        *,
        with_torch: bool = True,
        oldest: bool = False,
    ) -> None:
        self.folder = folder
        self.python = folder / "bin/python"
        self._version = python
        self._requirements = requirements
        self._with_torch = with_torch
        self._oldest = oldest

    def __enter__(self) -> Environment:
        interpreter = find_python(self._version)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        _uv("venv", "--quiet", "--python", interpreter, self.folder)
        try:
            self._install()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _install(self) -> None:
        options = []
        if not self._with_torch:
            without = self.folder / "without-torch.txt"
            without.write_text("torch ; sys_platform == 'never'\n")
            options += ["--overrides", without]
        chosen = [*self._requirements, "pytest>=8", "pytest-timeout>=2.3"]
        if self._oldest:
            options += ["-r", self._oldest_versions(options)]
        wheel = f"gradient-workbench[notebooks] @ {built_wheel().as_uri()}"
        _uv("pip", "install", "--quiet", "--python", self.python, *options, wheel, *chosen)

    def _oldest_versions(self, options: list[Any]) -> Path:
        """The oldest versions of what is declared, with what those need in the newest."""
        written = self.folder / "oldest.txt"
        _uv("pip", "compile", "--quiet", "--resolution", "lowest-direct", "--extra", "notebooks",
            "--python", self.python, *options, "--output-file", written,
            ROOT / "pyproject.toml")  # fmt: skip
        return written

    def versions(self) -> dict[str, str]:
        """The versions of Python and of the packages that matter, as installed."""
        lines = self.run(self.python, "-c", VERSIONS, *SHOWN).splitlines()
        return dict(line.split() for line in lines)

    def run(self, *command: Any, text: str = "", cwd: Path | None = None, **variables: str) -> str:
        """Run a command of the environment away from this tree; return its standard output.

        Raises
        ------
        CheckFailed
            If it fails or takes too long, with the end of what it said.
        """
        try:
            done = subprocess.run(
                list(map(str, command)), input=text, cwd=cwd or self.folder, capture_output=True,
                text=True, timeout=COMMAND_S, check=False, env=self.variables(**variables),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise CheckFailed(f"it did not end within {COMMAND_S} s") from None
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip())[-LONGEST_REASON:]
            raise CheckFailed(f"exit status {done.returncode}: {said}")
        return done.stdout

    def variables(self, **more: str) -> dict[str, str]:
        """The variables of its commands, without those that would bring other packages."""
        dropped = {"PYTHONPATH", "VIRTUAL_ENV", "JUPYTER_PATH", "JUPYTER_CONFIG_PATH"}
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        own = {
            "PATH": f"{self.python.parent}:{kept['PATH']}",
            "JUPYTER_CONFIG_DIR": str(self.folder / "jupyter"),
            "JUPYTER_DATA_DIR": str(self.folder / "jupyter-data"),
            "JUPYTER_RUNTIME_DIR": str(self.folder / "jupyter-run"),
            "IPYTHONDIR": str(self.folder / "ipython"),
            "GRADIENT_WORKBENCH_RUNS": str(self.folder / "runs"),
        }
        return {**kept, **own, **more}


def find_python(version: str) -> Path:
    """Return the interpreter of a version of Python.

    Raises
    ------
    CheckFailed
        If this machine has none.
    """
    found = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
    system = shutil.which(f"python{version}")
    if not found and system is None:
        raise CheckFailed(f"Python {version} is not installed on this machine")
    return found[-1] if found else Path(str(system))


def built_wheel() -> Path:
    """Return the wheel of this tree, built once for all rows."""
    name = "gradient_workbench-*.whl"
    if not list((BUILD / "dist").glob(name)):
        command = [str(ROOT / ".ci/build-packages"), str(BUILD / "dist")]
        subprocess.run(command, env={**os.environ, "PYTHON": sys.executable}, check=True)
    (wheel,) = (BUILD / "dist").glob(name)
    return wheel


def _uv(*arguments: Any) -> None:
    """Run uv; its cache is next to the environments, so that it links files instead of copying."""
    variables = {"UV_CACHE_DIR": str(BUILD / "cache"), "UV_LINK_MODE": "hardlink"}
    if "PIP_FIND_LINKS" in os.environ:  # a folder of wheels, such as PyTorch's for the CPU
        variables["UV_FIND_LINKS"] = os.environ["PIP_FIND_LINKS"]
    done = subprocess.run(
        [sys.executable, "-m", "uv", *map(str, arguments)], capture_output=True, text=True,
        check=False, env={**os.environ, **variables},
    )  # fmt: skip
    if done.returncode:
        said = " ".join(done.stderr.split())[-LONGEST_REASON:]
        raise CheckFailed(f"cannot be installed: {said}")
