"""Which tests run in the same process of pytest-xdist, and which are first."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from timers import PROCESS_S

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent
FILE = """
import os, time
import pytest

@pytest.mark.parametrize("number", range(4))
def test_worker(number):
    with open({log!r}, "a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + " {name}\\n")
    time.sleep(0.1)
"""
NAMES = ("agent/test_a", "agent/test_b", "browser/test_c", "browser/test_d", "wire/test_e")


@pytest.fixture(scope="module", params=["loadfile", "loadgroup"])
def files_by_worker(request, tmp_path_factory):
    """The names of the files whose tests each of two processes has run, in their order."""
    root = tmp_path_factory.mktemp("project")
    log = root / "log.txt"
    for name in NAMES:
        file = root / f"tests/{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(FILE.format(log=str(log), name=name))
    shutil.copy(TESTS / "conftest.py", root / "tests")
    (root / "pyproject.toml").write_text("[tool.pytest.ini_options]\ntimeout = 100\n")
    command = f"-m pytest -q -p no:cacheprovider -n 2 --dist {request.param} tests"
    paths = [str(TESTS.parent), str(TESTS / "support")]
    done = subprocess.run(
        [sys.executable, *command.split()], cwd=root, capture_output=True, text=True,
        timeout=PROCESS_S, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    by_worker = {}
    for line in log.read_text().splitlines():
        worker, name = line.split()
        by_worker.setdefault(worker, []).append(name)
    return by_worker


def test_browser_tests_are_first_and_in_one_process(files_by_worker):
    """They share a browser, a server and trainings, and take longest."""
    ran = next(names for names in files_by_worker.values() if "browser/test_c" in names)
    assert ran[:8] == ["browser/test_c"] * 4 + ["browser/test_d"] * 4


def test_other_files_are_each_in_one_process(files_by_worker):
    """Tests of a file share its fixtures."""
    assert len(files_by_worker) == 2
    for name in NAMES:
        assert sorted(names.count(name) for names in files_by_worker.values()) == [0, 4]
