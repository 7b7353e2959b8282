"""Time limits fit into each other; `.ci/limit` and `.ci/python-tests` end and name what hangs."""

import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import canary
import psutil
import pytest
from levels import in_soak
from timers import BUILD_S, FAR_S, LIMITS_FACTOR, PROCESS_S, InThread, within

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
LIMIT = ROOT / ".ci/limit"


def number(file, name):
    """Return the value of the first ``NAME = NUMBER`` in a file of this repository."""
    return float(re.search(rf"\b{name} = ([\d.]+)", (ROOT / file).read_text())[1])


def marked_limits():
    """Return the limits of tests that are marked with one of their own."""
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    return [float(seconds) for seconds in re.findall(r"mark\.timeout\((\d+)", sources)]


def test_what_is_inside_ends_first():
    """A wait ends before its test, a test before its process, a phase before the run."""
    test_s = number("pyproject.toml", "timeout")
    longest_s = max(marked_limits())
    assert FAR_S < PROCESS_S < test_s * LIMITS_FACTOR
    assert BUILD_S < longest_s * LIMITS_FACTOR <= 300 * LIMITS_FACTOR
    assert longest_s < number("pyproject.toml", "faulthandler_timeout")
    makefile = (ROOT / "Makefile").read_text()
    lint_s, typescript_s = map(float, re.findall(r"\.ci/limit (\d+) ", makefile)[-2:])
    (total_s,) = map(float, re.findall(r"\.ci/limit (\d+) ", (ROOT / ".ci/run").read_text()))
    phases = (ROOT / ".ci/python-tests").read_text()
    names = re.search(r"^(.*_S) = ([\d, ]+)$", phases, re.MULTILINE)
    seconds = [float(text) for text in names[2].split(",")]
    assert longest_s < max(seconds)
    assert sum(seconds) + lint_s + typescript_s < total_s


def test_the_steps_of_the_canary_end_before_it(tmp_path):
    phases = (ROOT / ".ci/python-tests").read_text()
    seconds = float(re.search(r"^CANARY_S, .* = (\d+), ", phases, re.MULTILINE)[1])
    for sequence in (canary.Cluster(), canary.Page(tmp_path)):
        assert sum(step.limit_s for step in sequence.steps) + canary.END_S < seconds


def test_the_canary_names_the_step_that_failed():
    """At its limit, a hundredth of what it is otherwise; whichever of the first two ends first."""
    finished = subprocess.run(
        [sys.executable, ROOT / "tests/canary.py"], capture_output=True, text=True, check=False,
        env=os.environ | {"TEST_LIMITS_FACTOR": "0.01"}, timeout=PROCESS_S,
    )  # fmt: skip
    assert finished.returncode == 1
    failed = r"canary: FAILED: start (two ranks|JupyterLab)\n"
    assert re.search(
        failed + r"It has not ended after 0\.\d+ s\. It is here:\n +File", finished.stdout
    )


def limit(seconds, source, *options, **environment):
    """Run Python under `.ci/limit`; return the finished process."""
    command = [LIMIT, *options, str(seconds / LIMITS_FACTOR), sys.executable, "-c", source]
    stacks = {"PYTHONPATH": str(ROOT / ".ci/stacks")}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PROCESS_S,
        env=os.environ | stacks | environment,
    )  # fmt: skip


def test_output_and_status_are_the_commands():
    finished = limit(30, "import sys; print('a' * 100_000); sys.exit(3)")
    assert finished.returncode == 3
    assert finished.stdout == "a" * 100_000 + "\n"


def test_at_the_limit_all_that_was_started_is_shown_and_ended(tmp_path):
    """Also a process in a session of its own whose parent has ended; with its stacks."""
    source = """
        import subprocess, sys, time
        def waits_for_ever():
            time.sleep(600)
        orphan = "import time\\ndef is_left_alone():\\n    time.sleep(600)\\nis_left_alone()"
        leave = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {orphan!r}])"
        subprocess.run([sys.executable, "-c", leave], start_new_session=True)
        waits_for_ever()
    """
    log = tmp_path / "gw0-1.tests"
    log.write_text("10:00:00 begin tests/a.py::test_a\n")
    start = time.monotonic()
    finished = limit(12, textwrap.dedent(source), TEST_RUN_FOLDER=str(tmp_path))
    assert finished.returncode == 124
    assert time.monotonic() - start < FAR_S
    assert "is_left_alone" in finished.stdout
    assert "in waits_for_ever" in finished.stdout
    assert "gw0-1: current test: tests/a.py::test_a" in finished.stdout
    ids = [int(pid) for pid in re.findall(r"^ +(\d+) .*/python ", finished.stdout, re.MULTILINE)]
    assert len(ids) == 2
    assert within(FAR_S, lambda: not any(map(psutil.pid_exists, ids)))


def test_a_process_that_keeps_the_output_open_is_not_waited_for():
    """It is ended only with --nothing-left, and then the command counts as failed."""
    source = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid)"
    finished = limit(30, source)
    (pid,) = finished.stdout.split()
    assert finished.returncode == 0
    assert psutil.Process(int(pid)).name() == "sleep"
    psutil.Process(int(pid)).kill()
    finished = limit(30, source, "--nothing-left")
    assert finished.returncode == 1
    assert re.search(r"left behind.*\n +\d+ sleep 60", finished.stdout)
    pid = int(finished.stdout.split()[0])
    assert within(
        FAR_S, lambda: not psutil.pid_exists(pid)
    )  # its parent has ended, so init reaps it


@pytest.fixture
def project(tmp_path):
    """A small project with this one's `.ci`; runs the tests in a file of it."""
    (tmp_path / ".ci").symlink_to(ROOT / ".ci")
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "flaky.txt").write_text("")
    (tests / "canary.py").write_text("")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = timing\n    soak\n")
    (tests / "conftest.py").write_text(
        "def pytest_runtest_setup(item):\n"
        "    item.user_properties.append(('test', item.nodeid))\n"
        "def pytest_sessionfinish(session):\n"
        "    if session.exitstatus == 5: session.exitstatus = 0\n"  # no test compares times
    )
    # not a link: the script takes its own place for the project's
    script = tmp_path / "python-tests.py"
    script.write_text((ROOT / ".ci/python-tests").read_text().replace("parents[1]", "parents[0]"))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}

    def run(source, **files):
        (tests / "test_it.py").write_text(textwrap.dedent(source))
        for name, text in files.items():
            (tests / name.replace("_", ".")).write_text(text)
        return subprocess.run(
            [sys.executable, script, "1"], capture_output=True, text=True, check=False,
            timeout=BUILD_S, env=environment,
        )  # fmt: skip

    return run


ONCE = """
    import pathlib
    def test_once():
        mark = pathlib.Path(__file__).with_name("failed")
        failed_before = mark.exists()
        mark.touch()
        assert failed_before
"""


@pytest.mark.timeout(300)
def test_a_failure_that_passes_when_repeated_fails_the_run(project):
    finished = project(ONCE)
    assert finished.returncode == 1
    assert "but is not in tests/flaky.txt: tests/test_it.py::test_once" in finished.stdout
    assert re.search(r"slowest tests\n +[\d.]+ s  tests/test_it.py::test_once", finished.stdout)
    assert re.search(r"canary \d+ s, parallel \d+ s, timing \d+ s, repeat \d+ s", finished.stdout)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("days", "status"), [(13, 0), in_soak(15, 1)])
def test_a_flaky_test_is_known_for_two_weeks(project, days, status):
    date = time.strftime("%Y-%m-%d", time.localtime(time.time() - days * 86_400))
    finished = project(ONCE, flaky_txt=f"# why\n{date} tests/test_it.py::test_once a race\n")
    assert finished.returncode == status, finished.stdout


@pytest.mark.timeout(300)
def test_nothing_runs_after_a_canary_that_fails(project):
    finished = project(ONCE, canary_py="raise SystemExit('start: no ranks')")
    assert finished.returncode == 1
    assert "start: no ranks" in finished.stdout
    assert "nothing else runs" in finished.stdout
    assert "parallel" not in finished.stdout


def test_a_thread_of_a_test_keeps_no_process(tmp_path):
    """`InThread` returns values, raises exceptions, and its thread is a daemon."""
    assert InThread(max, 1, 2).join() == 2
    with pytest.raises(ZeroDivisionError):
        InThread(lambda: 1 / 0).join()
    source = "from timers import InThread; import time; InThread(time.sleep, 600)"
    support = {"PYTHONPATH": str(ROOT / "tests/support")}
    subprocess.run(
        [sys.executable, "-c", source], check=True, timeout=FAR_S, env=os.environ | support
    )
