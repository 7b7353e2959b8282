"""A stop while ranks are replaced, added or attached to, and locks that nobody gives back."""

import fcntl
import os
import signal

import forked_kernels
import psutil
import pytest
from clusters import BeginSink, children, quiet, training, with_support
from levels import in_soak
from run_notebook import error_of, opened
from test_stop_button import ASK, STUBBORN, end, stops, usable  # noqa: F401 - a fixture
from timers import PROCESS_S, eventually, when

import workbench as wb
from workbench.errors import (
    CellInterrupted,
    ClusterError,
    ClusterStopped,
    StartFailed,
    UsageError,
)

KILLED_BY_THE_RING = """
import os, signal
import horovod.torch
if rank == 0:
    horovod.torch.{step} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def three():
    """Two ranks of three slots, each with a variable."""
    with wb.Cluster(n=2) as cluster:
        quiet(cluster, "kept = rank * 10")
        yield cluster


@pytest.fixture
def stopped_ranks():
    """Processes that a test stops with SIGSTOP, and that continue after it."""
    pids = []

    def stop(pid):
        os.kill(pid, signal.SIGSTOP)
        pids.append(pid)

    yield stop
    for pid in pids:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGCONT)


@pytest.mark.soak
def test_a_rank_that_does_not_leave_the_ring(three, stopped_ranks):
    """The wait for it ends soon after the interrupt; replaced, the others have all variables."""
    stopped_ranks(three.ranks[1].pid)
    with stops(1.5), pytest.raises(ClusterError) as caught:
        three.resize(3)
    told = str(caught.value)
    assert "going on with 3 ranks: interrupted before it was done. All variables are kept." in told
    assert "%cluster resize -n 3" in told
    assert len(told.splitlines()) == 1
    assert three.state == "failed"
    assert "%cluster resize -n 3" in three.message
    with pytest.raises(ClusterStopped, match=r"interrupted before.*resize"):
        quiet(three, "1")
    three.restart("1")
    assert three.state == "ready"
    assert quiet(three, "globals().get('kept')").values == {0: 0, 1: None}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("step", "fix"),
    [("shutdown", "Rebuild the ring with %cluster resize -n 3"), ("init", "Replace what is lost")],
)
def test_a_rank_that_stays_ends_during_the_change(three, step, fix):
    """It is named by its rank and signal, with one fix; what it logged long ago is not shown."""
    quiet(three, KILLED_BY_THE_RING.format(step=step))
    with pytest.raises(StartFailed) as caught:
        three.resize(3)
    rank = three.ranks[0]
    told = f"rank 0: its process {rank.pid} on {rank.vm} was killed by SIGKILL"
    assert str(caught.value) == f"{told}: replace it with %cluster restart"
    with pytest.raises(ClusterStopped) as refused:
        quiet(three, "1")
    assert f"{told}. {fix}" in str(refused.value)
    three.restart()
    assert three.n == 3
    assert 10 in quiet(three, "globals().get('kept')").values.values()


@pytest.mark.soak
def test_a_process_that_does_not_start(three, stopped_ranks):
    """The agent that should start it does not answer: the interrupt ends that wait too."""
    agent = psutil.Process(three.ranks[0].pid).ppid()
    stopped_ranks(agent)
    resize = r"replacing rank 1: .*resize -n 2"
    with stops(2.0), pytest.raises(ClusterError, match=resize) as caught:
        three.restart("1")
    assert "Variables of rank 1 are lost, those of all others are kept." in str(caught.value)
    os.kill(agent, signal.SIGCONT)
    three.resize(2)
    assert quiet(three, "globals().get('kept')").values == {0: 0, 1: None}


def give_up(cluster, mark):
    """Stop a cell that rank 1 continues to run until the file `mark` exists."""
    sink = BeginSink()
    with stops(0.2, sink=sink), pytest.raises(CellInterrupted, match="rank 1 has caught"):
        cluster.run(sink.PRINT + STUBBORN.format(end=str(mark)), sink=sink)
    assert cluster.state == "failed"


@pytest.mark.soak
def test_a_late_rank_after_a_restart_that_was_refused(three, end):  # noqa: F811
    """Another rank cannot be replaced meanwhile; the late one is used again when it has ended."""
    give_up(three, end)
    with pytest.raises(UsageError, match="rank 1 still runs a cell that was stopped"):
        three.restart("0")
    assert three.state == "failed"
    end.touch()
    assert eventually(lambda: three.state == "ready"), three.message
    assert usable(three)


@pytest.mark.soak
def test_a_late_rank_after_a_restart_that_failed(three, stopped_ranks, end):  # noqa: F811
    """What is missing is started first: a late rank alone does not make the cluster ready."""
    give_up(three, end)
    agent = psutil.Process(three.ranks[0].pid).ppid()
    stopped_ranks(agent)
    with stops(2.0), pytest.raises(ClusterError, match=r"replacing rank 1: .*resize -n 2"):
        three.restart("1")
    end.touch()
    os.kill(agent, signal.SIGCONT)
    with pytest.raises(ClusterStopped, match="resize -n 2"):
        quiet(three, "1")
    three.restart()
    assert three.state == "ready"
    assert quiet(three, "globals().get('kept')").values == {0: 0, 1: None}
    assert quiet(three, ASK.replace("kept, ", "")).values == {0: 2.0, 1: 2.0}


@pytest.mark.parametrize("replaced", [in_soak("0"), "0-1"])
def test_ranks_that_are_missing_are_not_worked_around(three, stopped_ranks, replaced):
    """No cell runs on fewer ranks after an interrupted replacement; one command fixes it."""
    agent = psutil.Process(three.ranks[0].pid).ppid()
    stopped_ranks(agent)
    with stops(2.0), pytest.raises(ClusterError):
        three.restart(replaced)
    os.kill(agent, signal.SIGCONT)
    fix = r"Variables of rank.* are lost.*%cluster resize -n 2, which also starts what is missing"
    for _ in range(2):
        with pytest.raises(ClusterStopped, match=fix):
            quiet(three, "rank")
    with pytest.raises(UsageError, match="ranks are missing"):
        three.restart("0")  # which of them that is has changed
    three.restart()
    kept = {0: None, 1: 10 if replaced == "0" else None}
    assert quiet(three, "globals().get('kept')").values == kept
    assert quiet(three, ASK.replace("kept, ", "")).values == {0: 2.0, 1: 2.0}


@pytest.mark.parametrize("delay", [in_soak(delay) for delay in (0.05, 0.8, 1.7)] + [0.4, 1.2])
def test_whatever_it_is_doing(three, delay):
    """An interrupt at any time leaves what the message says, and its fix works."""
    try:
        with stops(delay):
            three.resize(3)
    except (ClusterError, KeyboardInterrupt) as error:
        done = isinstance(error, KeyboardInterrupt)
        assert three.state == ("ready" if done else "failed")
    three.resize(3)
    assert quiet(three, "globals().get('kept')").values == {0: 0, 1: 10, 2: None}
    assert quiet(three, ASK.replace("kept, ", "")).values == {0: 3.0, 1: 3.0, 2: 3.0}


KERNEL = """
import os, time
from clusters import BeginSink
import workbench as wb
from workbench.cluster import TextSink
cluster = wb.Cluster(n=2, keep="600s").start()
cluster.run({first!r}, sink=TextSink())
sink = BeginSink()
cluster.run_in_background(sink.PRINT + {then!r}, sink=sink)
while not sink.begun(): time.sleep(0.02)
time.sleep(0.5)
os.kill(os.getpid(), 9)
"""


WATCH = """
import signal, sys, threading, time, os
def watch():
    while True:
        time.sleep(0.05)
        for frame in sys._current_frames().values():
            while frame is not None:
                if frame.f_code.co_name == "wait_until_idle":
                    time.sleep(1.0)
                    return os.kill(os.getpid(), signal.SIGINT)
                frame = frame.f_back
threading.Thread(target=watch, daemon=True).start()
"""
"""Presses the stop button once the kernel waits for the earlier kernel's cell."""


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["trains", "sleeps", "catches it"])
def test_attaching_is_interrupted_in_a_notebook(tmp_path, monkeypatch, kind, end):  # noqa: F811
    """`%cluster attach` waits for a cell that still runs; the stop button ends that cell."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    then = {
        "trains": "train(10**9)",
        "sleeps": "import time; time.sleep(600)",
        "catches it": STUBBORN.format(end=str(end)),
    }[kind]
    source = KERNEL.format(first=training(5) + "kept = rank * 10", then=then)
    forked_kernels.run(source, with_support(), PROCESS_S)
    with opened() as notebook:
        cell = notebook.run(f"{WATCH}cluster = %cluster attach")
        assert not error_of(cell), error_of(cell)
        if kind == "catches it":
            assert "still runs a cell" in error_of(notebook.run("%%distributed\nkept"))
        end.touch()
        wait = "import time\nfor _ in range(1200):\n    if cluster.state == 'ready': break\n"
        notebook.run(wait + "    time.sleep(0.1)")
        cell = notebook.run("cluster['kept']")
        assert not error_of(cell), error_of(cell)
        assert cell.outputs[-1].data["text/plain"] == "[0, 10]"
        total = "import torch\nfloat(hvd.allreduce(torch.ones(1), op=hvd.Sum))"
        assert not error_of(notebook.run(f"%%distributed --timeout 100s\n{total}"))
        notebook.run("%cluster stop")


@pytest.mark.soak
def test_a_lock_that_another_process_keeps(tmp_path):
    """Training and stop continue; the run is written once the lock is free; its owner is named."""
    with wb.Cluster(n=1, runs=tmp_path) as cluster:
        folder = cluster.timings.path
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.warns(RuntimeWarning, match="lock: another process has locked it"):
                quiet(cluster, training(3))
        quiet(cluster, "train(2)")
        assert eventually((folder / "run.json").exists)
    assert len(wb.open_run(folder).to_frame()) == 5


@pytest.mark.soak
def test_stop_while_another_process_keeps_the_lock(tmp_path):
    """A cluster stops though its run cannot be written."""
    cluster = wb.Cluster(n=1, runs=tmp_path).start()
    folder = cluster.timings.path
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.warns(RuntimeWarning, match="locked it"):
            quiet(cluster, training(3))
        cluster.stop()


@pytest.mark.soak
def test_the_agent_is_killed_while_all_ranks_are_replaced():
    """The message says how to go on, and that starts another agent."""
    with wb.Cluster(n=2) as cluster:
        (agent,) = children("workbench.agent.program")
        agent.suspend()
        killer = when(lambda: not cluster.ranks, agent.kill)
        with pytest.raises(StartFailed, match="killed by SIGKILL"):
            cluster.restart(ranks=[0, 1])
        killer.join()
        assert "%cluster resize -n 2, which also starts what is missing" in cluster.message
        cluster.restart()
        assert cluster.state == "ready"
        assert quiet(cluster, "world_size").values == {0: 2, 1: 2}
