"""Stopping a cell: it may take a while and be pressed often, and never costs variables."""

import contextlib
import os
import signal
import threading
import time

import pytest
from clusters import BeginSink, quiet
from levels import in_soak
from rank_states import rank_state
from timers import FAR_S, InThread, eventually, when

import workbench as wb
from workbench.cluster import TextSink, stalls
from workbench.cluster.stalls import Stopping
from workbench.errors import CellInterrupted, CellTimeout, ClusterStopped

pytestmark = pytest.mark.usefixtures("ctrl_c")

ASK = "import torch\nkept, float(hvd.allreduce(torch.ones(1), op=hvd.Sum))"
TRAIN = """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
while True:
    optimizer.zero_grad()
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
"""
STUBBORN = """
import os, time
while rank == 1 and not os.path.exists({end!r}):
    try:
        time.sleep(0.05)
    except KeyboardInterrupt:
        caught = True
if rank != 1:
    time.sleep(600)
"""
"""Rank 1 goes on after each interrupt, until there is a file."""
DEAF = """
import os, signal, time
if rank == 1:
    signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGINT}})
    while not os.path.exists({end!r}): time.sleep(0.05)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {{signal.SIGINT}})
time.sleep(600)
"""
"""Rank 1 blocks like code in C that never checks signals, until there is a file."""


@pytest.fixture
def kept(cluster):
    """The cluster, whose ranks have a variable each."""
    quiet(cluster, "kept = rank * 10")
    return cluster


def press():
    """Press the stop button."""
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


@contextlib.contextmanager
def stops(*after_s, sink=None):
    """Press the stop button at these times while the body runs, or while a sink's cell does."""

    def follow():
        eventually(lambda: sink is None or sink.begun())
        began = time.monotonic()
        for moment in after_s:
            time.sleep(max(0.0, began + moment - time.monotonic()))
            press()

    thread = InThread(follow)
    try:
        yield
    finally:
        while thread.is_alive():
            with contextlib.suppress(KeyboardInterrupt):  # the cell has ended before
                thread.join()


@pytest.fixture
def end(tmp_path):
    """A file that ends a cell which nothing else ends, after the test at the latest."""
    path = tmp_path / "end"
    yield path
    path.touch()


def usable(cluster):
    """Whether ranks have their variables, and the ring completes a collective."""
    n = cluster.n
    values = quiet(cluster, ASK, timeout=FAR_S).values
    return values == {rank: (rank * 10, float(n)) for rank in range(n)}


@pytest.mark.parametrize("delay", [0.02, in_soak(0.3), 0.9])
def test_a_stop_in_the_first_training_cell(new_ranks, delay):
    """Ranks that have just started load much when they first train: the stop reaches them."""
    quiet(new_ranks, "kept = rank * 10")
    sink = BeginSink()
    with stops(delay, sink=sink), pytest.raises(CellInterrupted, match="variables are kept"):
        new_ranks.run(sink.PRINT + TRAIN, sink=sink)
    assert new_ranks.state == "ready", new_ranks.message
    assert usable(new_ranks)


@pytest.mark.soak
def test_the_first_optimizer_is_made_at_once():
    """Modules that PyTorch loads for it are loaded before the ranks are forked."""
    with wb.Cluster(n=1) as cluster:
        assert quiet(cluster, "import sys; 'torch._dynamo' in sys.modules").values == {0: True}


@pytest.mark.parametrize("times", [(0.5, 0.9), (0.5, 0.55, 0.6, 0.7, 0.8), (0.5, 1.5)])
@pytest.mark.parametrize(
    "source", [TRAIN, "import time\ntry: time.sleep(600)\nfinally: time.sleep(2)"]
)
def test_stops_in_a_row(kept, source, times):
    """Pressed twice and more it hurries, and gives nothing up."""
    with stops(*times), pytest.raises((CellInterrupted, KeyboardInterrupt)):
        quiet(kept, source)
    assert eventually(lambda: kept.state == "ready"), kept.message
    assert usable(kept)


def test_code_that_catches_the_interrupt(kept, end):
    """A message says that it continues; the cluster and its ring are ready when it ends."""
    sink = BeginSink()
    with stops(0.5, sink=sink), pytest.raises(CellInterrupted) as caught:
        kept.run(sink.PRINT + STUBBORN.format(end=str(end)), sink=sink)
    assert "rank 1 has caught the interrupt and goes on" in str(caught.value)
    assert "ready again" in str(caught.value)
    assert "exists" in str(caught.value) or "sleep" in str(caught.value)  # the line where it is
    assert kept.state == "failed"
    assert [info.state for info in kept.ranks] == ["ready", "running"]
    with pytest.raises(ClusterStopped, match=r"rank 1.*still runs a cell.*ready again"):
        quiet(kept, "1")
    end.touch()
    assert eventually(lambda: kept.state == "ready"), kept.message
    assert usable(kept)
    assert quiet(kept, "globals().pop('caught', None)").values[1] is True


def test_what_several_ranks_do_is_said_in_the_plural():
    """`rank 1 has`, but `ranks 0-1 have`."""
    stopping = Stopping(())
    for rank in (0, 1, 2):
        stage = "pending" if rank == 2 else "raised"
        stopping.answer(rank, rank_state(interrupt_stage=stage, raised_s=1.0, stack="line 1"))
    assert stopping.outcome([0, 1]) == "ranks 0-1 have caught the interrupt and go on"
    assert stopping.outcome([1]) == "rank 1 has caught the interrupt and goes on"
    assert stopping.outcome([2]).startswith("rank 2 did not react: it is in code")


@pytest.mark.soak
def test_a_time_limit_and_code_that_catches_the_interrupt(kept, end):
    """The same after a cell's time limit."""
    with pytest.raises(CellTimeout, match="rank 1 has caught the interrupt and goes on"):
        quiet(kept, STUBBORN.format(end=str(end)), timeout=2)
    assert kept.state == "failed"
    end.touch()
    assert eventually(lambda: kept.state == "ready"), kept.message
    assert usable(kept)


def test_code_that_checks_no_signal(kept, end):
    """The stop waits until it ends, and reports what it waits for."""
    sink = BeginSink()
    said = "rank 1 did not react: it is in code that cannot be interrupted"
    waiter = when(lambda: said in sink.text, end.touch)
    with stops(1.0, sink=sink), pytest.raises(CellInterrupted):
        kept.run(sink.PRINT + DEAF.format(end=str(end)), sink=sink)
    waiter.join()
    assert said in sink.text
    assert eventually(lambda: kept.state == "ready"), kept.message
    assert usable(kept)


def test_a_stop_after_the_explanation_goes_on_at_once(kept, end, monkeypatch):
    """Whoever does not want to wait presses again; the rank is used again when it ends."""
    monkeypatch.setitem(stalls._PATIENCE_S, "pending", 600.0)  # the first alone waits for this
    sink = BeginSink()
    waiter = when(lambda: "rank 1 did not react" in sink.text, press)
    with stops(0.5, sink=sink), pytest.raises(CellInterrupted, match="rank 1 did not react"):
        kept.run(sink.PRINT + DEAF.format(end=str(end)), sink=sink)
    waiter.join()
    assert kept.state == "failed"
    end.touch()
    assert eventually(lambda: kept.state == "ready"), kept.message
    assert usable(kept)


@pytest.mark.soak
def test_a_rank_that_dies_after_it_was_left(kept, end):
    """A rank that still runs a stopped cell and is killed then is lost, and named so."""
    with pytest.raises(CellTimeout, match="goes on"):
        quiet(kept, STUBBORN.format(end=str(end)), timeout=2)
    os.kill(kept.ranks[1].pid, signal.SIGKILL)
    assert eventually(lambda: kept.ranks[1].state == "dead")
    with pytest.raises(ClusterStopped, match="SIGKILL"):
        quiet(kept, "1")
    kept.restart()
    assert quiet(kept, "globals().get('kept')").values == {0: 0, 1: None}


class SlowSink(TextSink):
    """Shows output more slowly than ranks write it, as a busy machine does."""

    def put(self, folded):
        time.sleep(0.004)
        super().put(folded)

    def finish(self):
        """Keep the live order."""


@pytest.mark.soak
def test_stop_while_the_output_is_far_behind(kept):
    """Ranks that have ended are not said to run on because what they wrote is still being read."""
    source = "import time\nfor i in range(1_000): print(rank, i, 'x' * 60)\ntime.sleep(600)"
    sink = SlowSink()
    with stops(1.5), pytest.raises(CellInterrupted) as caught:
        kept.run(source, sink=sink)
    assert "did not react" not in str(caught.value) + sink.text
    assert eventually(lambda: kept.state == "ready"), kept.message
    assert usable(kept)


LOST = """
import time
class Slow:
    def __del__(self): time.sleep(30)
slow = Slow()
del slow
time.sleep(600)
"""
PICKLED = """
import time
class Slow:
    def __reduce__(self): time.sleep(600)
    def __repr__(self): return "slow"
Slow()
"""
TOLD = """
import time
class Slow(Exception):
    def __str__(self): time.sleep(600)
raise Slow
"""


@pytest.mark.parametrize("source", [LOST, PICKLED, TOLD], ids=["lost", "pickled", "told"])
def test_wherever_a_rank_is(kept, source):
    """In a destructor, whose errors Python drops; while a value is pickled; in an error's text."""
    with stops(1.0), pytest.raises(CellInterrupted, match="variables are kept"):
        quiet(kept, source)
    assert kept.state == "ready", kept.message
    assert usable(kept)
