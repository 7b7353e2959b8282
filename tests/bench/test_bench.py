"""The exit status of ``python -m tests.bench``, and a short run of every benchmark."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from timers import PROCESS_S

from tests.bench.__main__ import TITLES
from tests.bench.bounds import NotMeasured, at_least, at_most
from tests.bench.running import run

ROOT = Path(__file__).parents[2]


def meets():
    yield at_most("start", [0.3, 0.4, 0.9], 0.5, "s")
    yield at_least("found", 19, 19)


def misses():
    yield at_most("start", [0.3, 0.6, 0.9], 0.5, "s")
    yield at_least("found", 18, 19)
    yield at_most("lag", float("nan"), 1, "s")
    yield at_most("size", 1, 1)


def fails():
    yield at_most("size", 1, 1)
    raise ValueError("no ring")


def is_not_measured():
    raise NotMeasured("no browser")
    yield


def run_all(*measures, judge=True):
    return run({measure.__name__: ("a title", measure) for measure in measures}, judge)


def test_bounds_that_are_met(capsys):
    """The exit status is 0; each bound is printed with its spread and its limit."""
    assert run_all(meets) == 0
    output = capsys.readouterr().out
    assert "start  0.4 (0.3 to 0.9) s, at most 0.5 s is asked\n" in output
    assert "Missed" not in output


def test_a_missed_bound(capsys):
    """The exit status is 1; benchmarks after it run, and the end lists each missed bound."""
    assert run_all(misses, meets) == 1
    before, _, end = capsys.readouterr().out.partition("Missed bounds:\n")
    assert "meets: a title" in before
    rows = end.splitlines()
    assert [row.split()[:2] for row in rows] == [
        ["misses", "start"],
        ["misses", "found"],
        ["misses", "lag"],
    ]


def test_a_failure(capsys):
    """The exit status is 1; benchmarks after it run, and the end names the error."""
    assert run_all(fails, meets) == 1
    before, _, end = capsys.readouterr().out.partition("Failed benchmarks:\n")
    assert "meets: a title" in before
    assert end == "  fails  ValueError('no ring')\n"


def test_a_benchmark_that_cannot_run_here(capsys):
    """It is neither missed nor failed."""
    assert run_all(is_not_measured) == 0
    assert "not measured: no browser" in capsys.readouterr().out


def test_a_smoke_run_judges_no_bound():
    """Failures still count."""
    assert run_all(misses, judge=False) == 0
    assert run_all(fails, judge=False) == 1


def test_the_exit_status_of_the_command(tmp_path):
    """It is that of the run: a benchmark of a package that cannot be imported fails."""
    (tmp_path / "workbench.py").write_text("raise ImportError('no torch')")
    done = bench("imports", folder=tmp_path)
    assert done.returncode == 1
    assert "Failed benchmarks:\n  imports" in done.stdout
    assert "ImportError: no torch" in done.stderr


def test_an_unknown_name():
    """It is refused before anything is measured."""
    done = bench("imports", "nothing")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "'nothing' is no benchmark" in done.stderr


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("name", TITLES)
def test_smoke(name):
    """Every benchmark works; how fast things are is judged by ``make bench`` only."""
    done = bench("--smoke", name)
    assert done.returncode == 0, done.stdout + done.stderr
    if reason := re.search("^not measured: (.*)", done.stdout, re.MULTILINE):
        pytest.skip(reason[1])


def bench(*arguments, folder=ROOT):
    """Run the command in a folder, whose modules come first."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))}
    return subprocess.run(
        [sys.executable, "-m", "tests.bench", *arguments],
        cwd=folder, env=environment, check=False, capture_output=True, text=True,
        timeout=PROCESS_S,
    )  # fmt: skip
