"""The wheel in an environment of its own, as a user installs it: no checkout, no Node."""

import os
import re
import shutil
import subprocess

import pytest
from environments import NOTEBOOK, build_wheel, environment_of
from playwright.sync_api import expect
from timers import PROCESS_S

from .server import LabServer

pytestmark = [pytest.mark.soak, pytest.mark.slow, pytest.mark.timeout(300)]
QUICKSTART = ["horovod", "scikit-learn"]  # `workbench build-horovod`, and the extra `notebooks`


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of an environment with the wheel and what it requires."""
    wheel = build_wheel(NOTEBOOK, tmp_path_factory.mktemp("wheel"))
    return environment_of(wheel, tmp_path_factory.mktemp("environment"), besides=QUICKSTART)


@pytest.fixture
def installed_server(browser, python, tmp_path):
    """A JupyterLab of that environment."""
    (tmp_path / "notebooks").mkdir()
    server = LabServer(tmp_path, tmp_path / "notebooks", python=python)
    yield server
    server.stop()


def run(python, *arguments, cwd):
    """Run `workbench` of the environment, whose programs are the only ones on the PATH."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    clean["PATH"] = str(python.parent)
    assert shutil.which("node", path=clean["PATH"]) is None
    return subprocess.run(
        [python.parent / "workbench", *arguments], cwd=cwd, env=clean, capture_output=True,
        text=True, timeout=PROCESS_S, check=False,
    )  # fmt: skip


def test_the_quickstart(python, tmp_path):
    """`workbench demo` trains, prints what communication costs, and writes the page."""
    done = run(python, "demo", "--html", tmp_path / "page.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"An iteration takes [\d.]+ ms", done.stdout)
    assert "<svg" in (tmp_path / "page.html").read_text()


def test_the_quickstart_without_its_data(python, tmp_path):
    """Where an extra is missing, the command to install it is given before anything starts."""
    package = next(python.parents[1].glob("lib/python*/site-packages/sklearn"))
    away = package.rename(tmp_path / "sklearn")
    try:
        done = run(python, "demo", cwd=tmp_path)
    finally:
        away.rename(package)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        "workbench demo: not installed: sklearn. Run "
        "`pip install 'gradient-workbench[notebooks]'`.\n"
    )


def test_the_panel(new_lab, installed_server):
    """JupyterLab has the panel, its server extension and its settings without a build."""
    lab = new_lab(installed_server).open()
    lab.panel.open()
    expect(lab.panel.device("CPU").locator(".jp-gw-Figure-number")).to_have_text(re.compile(r"^\d"))
    lab.run_command("settingeditor:open", query="Gradient Workbench")
    expect(lab.page.locator("input[label='Cards open by default']")).to_be_visible()
    assert lab.complaints == []
