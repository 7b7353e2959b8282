"""A relative path in an XDG variable is ignored, as the specification of XDG requires."""

import subprocess
import sys
from pathlib import Path

import pytest
from clusters import quiet, training
from timers import eventually

import workbench as wb
from workbench.cluster.controller import runtime_folder
from workbench.horovod_build.wheels import cache_folder
from workbench.timings.runs import runs_folder

DATA, CACHE = ".local/share", ".cache"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home of its own, and another working directory."""
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "GRADIENT_WORKBENCH_RUNS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "home"


def folders():
    """The folders of runs, wheels and running clusters."""
    return runs_folder(), cache_folder(), runtime_folder()


@pytest.mark.parametrize("given", ["", ".", "data", "./data", "../data", "~/data"])
def test_a_relative_path_is_ignored(home, monkeypatch, given):
    """The default in the user's home is used, from whichever working directory."""
    monkeypatch.setenv("XDG_DATA_HOME", given)
    monkeypatch.setenv("XDG_CACHE_HOME", given)
    assert folders() == (
        home / DATA / "gradient-workbench/runs",
        home / CACHE / "gradient-workbench/horovod",
        home / DATA / "jupyter/runtime",
    )


def test_an_absolute_path_is_used(home, monkeypatch):
    """As it is given."""
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    assert folders() == (
        home / "data/gradient-workbench/runs",
        home / "cache/gradient-workbench/horovod",
        home / "data/jupyter/runtime",
    )


def test_jupyters_own_variables_count(home, monkeypatch):
    """`JUPYTER_RUNTIME_DIR` is no XDG variable: a relative path is one in the working directory."""
    monkeypatch.setenv("XDG_DATA_HOME", "data")
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", "runtime")
    assert runtime_folder() == Path.cwd() / "runtime"
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(home / "runtime"))
    assert runtime_folder() == home / "runtime"


@pytest.mark.soak
def test_a_user_without_a_home(home, monkeypatch):
    """The folders are absolute paths all the same."""
    script = "from test_xdg_folders import folders\nfor one in folders()[:2]: print(one)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": ":".join(sys.path), "HOME": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(Path(line).is_absolute() for line in done.stdout.splitlines())


@pytest.mark.slow
def test_a_run_is_found_from_another_working_directory(home, monkeypatch, tmp_path):
    """A notebook that changes its directory still finds its runs, and writes nothing there."""
    monkeypatch.setenv("XDG_DATA_HOME", "data")
    with wb.Cluster(n=1) as cluster:
        quiet(cluster, training(3))
        monkeypatch.chdir(tmp_path)
        quiet(cluster, "train(3)")
    assert eventually(lambda: [run.state for run in wb.list_runs()] == ["ended"])
    assert len(wb.open_run(cluster.name)) == 6
    assert {path.name for path in tmp_path.iterdir()} == {"home", "elsewhere"}
    assert not list((tmp_path / "elsewhere").iterdir())
