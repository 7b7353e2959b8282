"""Wheels of this tree, and environments that have only what a distribution declares."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from timers import BUILD_S

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
    subprocess.run([*command, "--no-index", "--no-deps"], check=True, timeout=BUILD_S)


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
        copy_data(found, folder)
    return python


def copy_data(found, folder):
    """Copy the files that a distribution has in `share` and `etc`, such as JupyterLab's pages.

    A Jupyter server serves no link to a file outside its folders.
    """
    for file in found.files:
        parts = [part for part in file.parts if part != ".."]
        if ".." in file.parts and parts[0] in {"share", "etc"}:
            path = folder.joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(found.locate_file(file), path)


def build_packages(folder, **environment):
    """Build the sdists and wheels of this tree, as `make dist` does; their paths by name."""
    if find_spec("hatch_jupyter_builder") is None:
        pytest.skip("not installed here: pip install hatchling hatch-jupyter-builder")
    if not FRONT_END.exists():
        pytest.skip("the front end is not built here: cd labextension && jlpm build:prod")
    own = {"PYTHON": sys.executable, **environment}
    command = [ROOT / ".ci/build-packages", folder]
    subprocess.run(
        command, env={**os.environ, **own}, check=True, capture_output=True, timeout=BUILD_S
    )
    return {path.name: path for path in folder.iterdir()}


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
