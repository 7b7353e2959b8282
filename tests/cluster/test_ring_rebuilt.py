"""A ring that could not be formed: tried again, and never a reason to lose variables."""

import contextlib
import random
import signal
import threading
import time

import pytest
from clusters import quiet
from levels import in_soak
from timers import FAR_S, InThread, eventually, when

import workbench as wb
from workbench.cluster import TextSink
from workbench.cluster.threads import uninterrupted
from workbench.errors import CellInterrupted, ClusterStopped, StartFailed, UsageError

pytestmark = pytest.mark.usefixtures("ctrl_c")

ASK = "import torch\nkept, float(hvd.allreduce(torch.ones(1), op=hvd.Sum))"
FAILS = """
import time
if rank == 1:
    real = getattr(hvd.init, "real", hvd.init)
    tries = {times}
    def init(*args, **options):
        global tries
        if tries == 0:
            return real(*args, **options)
        tries -= 1
        time.sleep({seconds})
        raise ValueError("Horovod initialization failed: boom")
    init.real, hvd.init = real, init
"""
"""Rank 1 cannot join a ring some times, while the others wait for it."""
WAITS = """
import os
real = getattr(hvd.init, "real", hvd.init)
def init(*args, **options):
    os.environ["HOROVOD_SIZE"] = "3"
    hvd.init = real
    return real(*args, **options)
hvd.init = init
"""
"""All ranks wait once for another that does not come: half a minute, if nobody ends it."""
BREAK = "hvd.shutdown()"
"""After this cell the ring is rebuilt."""


@pytest.fixture
def kept(cluster):
    """The cluster, whose ranks have a variable each."""
    if cluster.state == "failed":
        cluster.restart()
    quiet(cluster, "kept = rank * 10")
    return cluster


def fail(cluster, times, seconds=0.0):
    """Have rank 1 fail to join a ring so many times, from its next try on."""
    quiet(cluster, FAILS.format(times=times, seconds=seconds))


def usable(cluster):
    """Whether ranks have their variables, and the ring completes a collective."""
    n = cluster.n
    return quiet(cluster, ASK, timeout=FAR_S).values == {r: (r * 10, float(n)) for r in range(n)}


def run_and_wait(cluster):
    """Break the ring, and wait where a late interrupt is raised as well."""
    quiet(cluster, BREAK)
    time.sleep(2)


def interrupt():
    """Do as Ctrl-C in the kernel does."""
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def test_a_task_that_is_not_interrupted_runs_once_and_to_its_end():
    """Wherever the interrupt comes: before it, while its thread starts, during it."""
    seed = random.Random(0)
    for _ in range(300):
        begun, ended, seen = [], [], None

        def task(begun=begun, ended=ended):
            begun.append(1)
            time.sleep(0.002)
            ended.append(1)

        ready = threading.Event()

        def press(ready=ready):
            ready.wait()
            time.sleep(seed.uniform(0, 0.001))
            interrupt()

        thread = InThread(press)
        try:
            ready.set()
            uninterrupted(task)
            thread.join()
            time.sleep(0.1)  # where the interrupt comes after the task
        except KeyboardInterrupt:
            seen = len(begun), len(ended)
        thread.join()
        time.sleep(0.004)
        # what is raised to the caller is final: nothing goes on in a thread
        assert seen in {(0, 0), (1, 1)}
        assert seen == (len(begun), len(ended))


def test_an_interrupt_while_another_is_handled():
    """It does not wait for a lock that the first one holds: nothing would ever release it."""
    lock, taken, go_on = threading.Lock(), [], threading.Event()

    def interrupted():
        taken.append(lock.acquire(timeout=1))
        if len(taken) == 1:
            signal.raise_signal(signal.SIGINT)
            lock.release()
            go_on.set()

    def task():
        interrupt()
        go_on.wait(60)

    with pytest.raises(KeyboardInterrupt):
        uninterrupted(task, interrupted)
    assert taken == [True]


@pytest.mark.soak
def test_a_try_that_fails_is_followed_by_another(kept):
    """There is no effect: the previous cell ended normally, and the next one works."""
    fail(kept, 2)
    sink = TextSink()
    kept.run(BREAK, sink=sink)
    assert kept.state == "ready", kept.message
    assert quiet(kept, "tries", ranks=[1]).values == {1: 0}
    assert usable(kept)


@pytest.mark.soak
def test_tries_that_take_long_are_said_in_a_line(kept):
    """The note says what was tried, why it failed, and that a stop ends it."""
    fail(kept, 1, seconds=1.5)
    sink = TextSink()
    kept.run(BREAK, sink=sink)
    (line,) = sink.text.splitlines()
    assert line.startswith("Rebuilding the ring")
    assert "Stop again" in line
    assert usable(kept)


@pytest.mark.soak
def test_the_next_cell_forms_the_ring_that_could_not_be_formed(kept):
    """Three attempts fail; the cluster says how to continue, and continues without a restart."""
    fail(kept, 3)
    quiet(kept, BREAK)
    assert kept.state == "failed"
    assert "boom" in kept.message
    assert usable(kept)
    assert kept.state == "ready"


def test_a_cell_whose_ring_cannot_be_formed_is_refused_with_the_fix(kept):
    """The cell does not run; the fix that is named works, and keeps variables."""
    fail(kept, 6)
    quiet(kept, BREAK)
    with pytest.raises(ClusterStopped, match=r"boom.*Rebuild the ring with %cluster restart,"):
        quiet(kept, "ran = True")
    kept.restart()
    assert kept.state == "ready"
    assert usable(kept)
    assert quiet(kept, "'ran' in globals()").values == {0: False, 1: False}


@pytest.mark.soak
def test_variables_are_reached_while_the_ring_is_broken(kept):
    """They need no ring; the cluster still says what it lacks, and the next cell rebuilds it."""
    fail(kept, 3)
    quiet(kept, BREAK)
    assert kept.state == "failed"
    assert kept["kept"] == [0, 10]
    kept.push({"sent": 1})
    assert kept.state == "failed"
    assert "boom" in kept.message
    assert usable(kept)
    assert quiet(kept, "sent").values == {0: 1, 1: 1}


def test_a_restart_without_a_lost_rank_needs_a_broken_ring(kept):
    """A cluster that is well has nothing to restart."""
    with pytest.raises(UsageError, match="Nothing to restart"):
        kept.restart()


@pytest.mark.soak
def test_a_restart_that_fails_can_be_called_again(kept):
    """The fix stays until it has worked."""
    fail(kept, 6)
    quiet(kept, BREAK)
    with pytest.raises(StartFailed, match="boom"):
        kept.restart()
    assert kept.state == "failed"
    kept.restart()
    assert usable(kept)


@pytest.mark.soak
def test_a_restart_waits_for_a_rank_that_still_leaves(kept):
    """A rank of a busy machine takes seconds to give up a ring: it is not to be replaced."""
    quiet(
        kept,
        """
import time
tries, real = 3, getattr(hvd.init, "real", hvd.init)
def init(*args, **options):
    global tries
    if tries == 0:
        return real(*args, **options)
    tries -= 1
    if rank == 1 and tries == 0:
        time.sleep(5)
    raise ValueError("Horovod initialization failed: boom")
init.real = real
hvd.init = init
""",
    )
    quiet(kept, BREAK)
    assert kept.state == "failed"
    kept.restart()
    assert usable(kept)


@pytest.mark.parametrize("times", [in_soak(1), 3])
def test_a_resize_whose_ring_fails(times):
    """Once: it is tried again. Thrice: the ranks are there, and form the ring later."""
    with wb.Cluster(n=2) as cluster:
        quiet(cluster, "kept = rank * 10")
        fail(cluster, times)
        if times == 1:
            cluster.resize(3)
        else:
            with pytest.raises(StartFailed, match="boom"):
                cluster.resize(3)
            assert cluster.state == "failed"
            cluster.restart()
        quiet(cluster, "kept = 20", ranks=[2])
        assert usable(cluster)


def test_a_stop_ends_a_forming_that_takes_long(kept):
    """Ranks that wait for one that does not come are free in seconds, not in half a minute."""
    quiet(kept, WAITS)
    sink = TextSink()
    # an earlier stop ends the cell only
    waiter = when(lambda: "Rebuilding" in sink.text, lambda: (time.sleep(3.5), interrupt()))
    with pytest.raises((CellInterrupted, KeyboardInterrupt)):
        kept.run(BREAK, sink=sink)
    waiter.join()
    assert kept.state == "failed"
    assert "interrupted" in kept.message
    assert usable(kept)


@pytest.mark.soak
def test_an_early_stop_does_not_end_the_forming(kept):
    """Who presses often wants the cell to end, and not the ring to be broken."""
    fail(kept, 1, seconds=2.0)

    def interrupt_often():
        time.sleep(0.2)
        for _ in range(6):
            time.sleep(0.1)
            interrupt()

    presses = InThread(interrupt_often)
    with pytest.raises((CellInterrupted, KeyboardInterrupt)):
        run_and_wait(kept)
    while presses.is_alive():
        with contextlib.suppress(KeyboardInterrupt):  # one that came after the ring was formed
            presses.join()
    assert eventually(lambda: kept.state == "ready"), kept.message
    assert usable(kept)
