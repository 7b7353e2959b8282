"""What becomes of a run when its kernel is killed, or followed by another."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from recorded_training import same
from timers import eventually

import workbench as wb

KERNEL = """
import sys, time
sys.path.insert(0, {tests!r})
from recorded_training import Records, Training, record
one = Training("killed")
one.train(4)
print(one.timings.path, flush=True)
one.timings.begin_cell(2)
index = 0
while True:
    for outbox in one.outboxes:
        outbox.send(Records((record(index, cell=2).pack(),)))
    index += 1
    time.sleep(0.005)
"""


@pytest.fixture
def kernel():
    """Start kernels that train without end, and kill them."""
    source = KERNEL.format(tests=str(Path(__file__).parents[2] / "support"))
    begun = []

    def begin():
        begun.append(subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE))
        return begun[-1], begun[-1].stdout.readline().decode().strip()

    yield begin
    for process in begun:
        process.kill()
        process.wait()


def test_what_a_killed_kernel_has_flushed_is_there(kernel):
    """After kill -9 all is read up to the last flush, and the missing end is reported."""
    process, path = kernel()
    run = wb.open_run(path)
    assert eventually(lambda: run.iterations >= 100)
    assert run.state == "running"
    before = len(run)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with pytest.warns(UserWarning, match="without closing"):
        run = wb.open_run(path)
    assert run.state == "cut off"
    assert len(run) >= before > 100
    assert (np.diff(np.sort(run.to_frame().query("rank == 0")["iteration"])) == 1).all()
    collectives = run.collectives()
    assert collectives.groupby(["iteration", "rank"]).size().eq(2).all()


def test_a_session_saved_while_the_run_goes_on_says_so(kernel, tmp_path):
    """Its files are open as those of a killed kernel, which may not be what happened."""
    _, path = kernel()
    run = wb.open_run(path)
    assert eventually(lambda: run.iterations >= 10)
    session = run.save(tmp_path / "now.gwsession")
    with pytest.warns(UserWarning, match="or it was saved while it ran"):
        saved = wb.open_run(session)
    assert saved.iterations >= 10


@pytest.mark.slow
def test_two_kernels_write_at_once(kernel):
    """Runs of different kernels are stored next to each other, and neither removes the other's."""
    os.environ["GRADIENT_WORKBENCH_MOST_RUNS"] = "1"
    try:
        (_, first), (_, second) = kernel(), kernel()
    finally:
        del os.environ["GRADIENT_WORKBENCH_MOST_RUNS"]
    assert first != second
    runs = wb.list_runs()
    assert {str(run.path) for run in runs} == {first, second}
    assert all(run.state == "running" for run in runs)
    # a busy machine may write later than the end of a cell waits
    assert eventually(lambda: all(run.iterations >= 4 for run in runs))


def test_the_next_kernel_goes_on_with_a_run(training):
    """Rows, iteration numbers and single collectives are those of one run of two kernels."""
    first = training()
    first.train(3)
    state = first.timings.to_state()
    first.close()
    second = training(state=state)
    second.cell = 1
    assert len(second.timings) == 6
    assert second.timings.collectives().equals(first.timings.collectives())
    timings = second.train(2, layout=None)  # the ranks have sent their layouts long ago
    assert sorted(timings.to_frame()["iteration"].unique()) == list(range(5))
    second.close()
    run = wb.open_run(timings.path)
    same(run, timings)
    assert (run.state, run.problems) == ("ended", [])


def test_the_next_kernel_begins_a_run_where_none_was_trained(training):
    """A cluster to which a kernel attached before its first iteration has its run from there on."""
    first = training()
    state = first.timings.to_state()
    first.close()
    timings = training(state=state).train(2)
    assert str(timings.path) == state["run"]
    same(wb.open_run(timings.path), timings)
