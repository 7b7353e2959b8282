"""Cells on ranks of this machine that fail, hang or are stopped: the ranks are free again."""

import contextlib
import re
import signal
import textwrap
import threading
import time

import forked_kernels
import pytest
from clusters import quiet, with_support
from timers import FAR_S, PROCESS_S, InThread

import workbench as wb
from workbench.cluster import TextSink
from workbench.errors import (
    CellInterrupted,
    CellTimeout,
    ClusterStopped,
    RanksFailed,
)


def test_an_error_is_reported_once(cluster):
    """The same error on both ranks is one error with both ranks; variables are kept."""
    with pytest.raises(RanksFailed) as caught:
        quiet(cluster, "kept = 5\n1/0")
    assert list(caught.value.errors) == [0, 1]
    assert str(caught.value).count("[ranks 0-1] ZeroDivisionError") == 1
    assert cluster["kept"] == [5, 5]


def test_a_syntax_error_is_an_error(cluster):
    """A cell that cannot be compiled raises a syntax error."""
    with pytest.raises(RanksFailed, match="SyntaxError"):
        quiet(cluster, "for for")


def test_a_failed_cell_keeps_nothing_once_another_runs(cluster):
    """The variables of its functions are freed, and the rank's memory is usable again."""
    quiet(
        cluster,
        "import gc, weakref\ngc.disable()\nheld = weakref.WeakSet()\nclass Activations: pass\n"
        "def keep():\n  activations = Activations()\n  held.add(activations)\n  1 / 0\n"
        "def fail():\n"
        "  try: keep()\n"
        "  except ZeroDivisionError as error: raise ValueError('no') from error",
    )
    for _ in range(3):
        with pytest.raises(RanksFailed):
            quiet(cluster, "kept = 5\nfail()")
    assert quiet(cluster, "count = len(held)\ngc.enable()\ncount, kept").values[0] == (0, 5)


@pytest.mark.parametrize("source", ["%debug", "import pdb; pdb.pm()", "sys.last_traceback"])
def test_a_debugger_finds_the_variables_of_the_last_error(cluster, source):
    """They are freed only by a cell that does not ask for them."""
    with pytest.raises(RanksFailed):
        quiet(cluster, "def fail():\n  number = 41\n  1 / 0\nfail()")
    find = (
        "import sys, traceback\n"
        "frames = [frame for frame, _ in traceback.walk_tb(getattr(sys, 'last_' + 'traceback'))]\n"
        "frames[-1].f_locals.get('number')"
    )
    assert quiet(cluster, f"# {source!r}\n{find}").values == {0: 41, 1: 41}
    assert quiet(cluster, find).values == {0: None, 1: None}


@pytest.mark.parametrize("members", ["None", "'abc'", "property(lambda self: 1 / 0)"])
def test_an_error_with_members_of_its_own(cluster, members):
    """The next cell runs, whatever the attributes of the last error are."""
    with pytest.raises(RanksFailed, match="Odd"):
        quiet(cluster, f"class Odd(Exception): exceptions = {members}\nraise Odd()")
    assert quiet(cluster, "1 + 1").values == {0: 2, 1: 2}


def test_the_last_traceback_stays_the_same(cluster):
    """%tb shows it after other cells."""
    with pytest.raises(RanksFailed) as caught:
        quiet(cluster, "def fail():\n  number = 41\n  1 / 0\nfail()")
    sink = TextSink()
    for source in ("1 + 1", "%tb"):
        cluster.run(source, sink=sink)
    shown = [re.sub(r"\x1b\[[0-9;]*m", "", text) for text in (str(caught.value), sink.text)]
    for text in shown:
        assert re.search(r"in fail\b.*----> 3 +1 / 0", text, re.DOTALL), text


def test_a_gpu_without_memory(cluster):
    """PyTorch's error says how much was asked for; ours what holds the rest, and what to do."""
    source = (
        "import torch\n"
        "model = torch.nn.Linear(1 << 14, 1 << 13, bias=False)\n"  # half a GiB
        "model(torch.ones(1, 1 << 14)).sum().backward()\n"
        "incomplete = torch.nn.Linear.__new__(torch.nn.Linear)\n"  # as while it is copied
        "raise torch.cuda.OutOfMemoryError('CUDA out of memory. Tried to allocate 20.00 GiB.')"
    )
    with pytest.raises(RanksFailed) as caught:
        quiet(cluster, source, ranks="0")
    message = str(caught.value)
    assert "Tried to allocate 20.00 GiB. This rank's tensors have" in message
    assert "0.50 GiB parameters, 0.50 GiB gradients, 0.00 GiB optimizer state" in message
    assert "largest_batch" in message
    quiet(cluster, "del model, incomplete", ranks="0")


def test_the_workers_of_a_loader_that_failed_end_with_the_next_cell(cluster):
    """At once: the garbage collector would wait 5 s for each, during a training."""
    load = (
        "from torch.utils.data import DataLoader\nimport psutil\n"
        "def epoch():\n"
        "  batches = iter(DataLoader(range(100), num_workers=1))\n  next(batches)\n  1 / 0\n"
        "epoch()"
    )
    with pytest.raises(RanksFailed):
        quiet(cluster, load)
    assert quiet(cluster, "len(psutil.Process().children())").values == {0: 0, 1: 0}


@pytest.mark.parametrize("source", ["print(1", "x = [1, 2\ny = 3", '"""never ends'])
def test_what_is_not_closed_is_a_syntax_error(cluster, source):
    """As in a notebook: what is wrong is named, and none of our own code is shown."""
    with pytest.raises(RanksFailed) as caught:
        quiet(cluster, source)
    assert {error.name for error in caught.value.errors.values()} <= {
        "SyntaxError", "_IncompleteInputError",
    }  # fmt: skip
    assert "session.py" not in str(caught.value)


def test_a_rank_that_fails_frees_the_others(cluster):
    """One rank raises while the other waits in a collective: it is freed, and both continue."""
    source = "import torch\nif rank == 1: raise ValueError('boom')\nhvd.allreduce(torch.ones(2))"
    with pytest.raises(RanksFailed) as caught:
        quiet(cluster, "marker = rank\n" + source)
    assert list(caught.value.errors) == [1]
    assert caught.value.errors[1].name == "ValueError"
    assert "freed" in str(caught.value)
    assert cluster["marker"] == [0, 1]
    total = quiet(cluster, "float(hvd.allreduce(torch.ones(1), op=hvd.Sum))").values
    assert total == {0: 2.0, 1: 2.0}


def test_an_optimizer_lives_on_after_a_failure(cluster):
    """A rank fails between backward and step: the same optimizers train on afterwards."""
    setup = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters())
def train(fail):
    optimizer.zero_grad()
    model(torch.ones(3, 4)).sum().backward()
    if fail and rank == 0: raise RuntimeError('between')
    optimizer.step()
train(False)
"""
    quiet(cluster, setup)
    with pytest.raises(RanksFailed, match="between"):
        quiet(cluster, "train(True)\ntrain(False)")
    quiet(cluster, "train(False)\ntrain(False)", timeout=FAR_S)
    quiet(cluster, "hvd.broadcast_parameters(model.state_dict(), root_rank=0)")
    sums = quiet(cluster, "float(model.weight.sum())").values
    assert sums[0] == sums[1]


@pytest.mark.parametrize(
    "source", ["time.sleep(600)", "hvd.allreduce(torch.ones(1)) if rank else time.sleep(600)"]
)
def test_timeout(cluster, source):
    """A cell past its time is interrupted wherever it is, and says where that was."""
    with pytest.raises(CellTimeout) as caught:
        quiet(cluster, f"import time, torch\n{source}", timeout=6)
    assert caught.value.unfinished == (0, 1)
    assert "time.sleep(600)" in str(caught.value)
    assert quiet(cluster, "float(hvd.allreduce(torch.ones(1), op=hvd.Sum))").values == {0: 2, 1: 2}


def test_interrupt():
    """Ctrl-C reaches ranks that compute and ranks that wait; the cluster is usable at once."""
    script = """
        import signal, threading, time, workbench as wb
        from clusters import BeginSink
        from timers import when
        from workbench.cluster import TextSink
        from workbench.errors import CellInterrupted
        def press():
            time.sleep(0.5)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        cell = "hvd.allreduce(torch.ones(1)) if rank else time.sleep(600)"
        with wb.Cluster(n=2) as cluster:
            for _ in range(3):
                sink = BeginSink()
                presses = when(sink.begun, press)
                try:
                    cluster.run(sink.PRINT + "import time, torch\\n" + cell, sink=sink)
                except CellInterrupted:
                    print(cluster.run("rank", sink=TextSink()).values, flush=True)
                presses.join()
    """
    # a process of its own, as a script or a kernel is: pytest's belongs to its plugins too
    done = forked_kernels.run(textwrap.dedent(script), with_support(), PROCESS_S)
    assert done.stdout.splitlines() == ["{0: 0, 1: 1}"] * 3, done.stderr


def test_a_rank_that_dies_is_named(cluster):
    """A killed rank is named with its signal, and the other is freed."""
    source = "import os, signal, torch\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
    with pytest.raises(RanksFailed, match="SIGKILL") as caught:
        quiet(cluster, source + "hvd.allreduce(torch.ones(1))")
    assert list(caught.value.errors) == [1]
    assert [info.state for info in cluster.ranks] == ["ready", "dead"]
    with pytest.raises(ClusterStopped, match="SIGKILL"):
        quiet(cluster, "1")


@pytest.mark.parametrize(
    "wait",
    [
        "hvd.synchronize(hvd.allreduce_async(torch.ones(1), name='a'))",
        "hvd.broadcast_parameters(torch.nn.Linear(2, 2).state_dict(), root_rank=0)",
        "hvd.broadcast_object(1)",
        "hvd.barrier()",
    ],
)
def test_whatever_a_rank_waits_in_it_is_freed(cluster, wait):
    """Every way to wait for another rank is known as such when that rank fails."""
    with pytest.raises(RanksFailed) as caught:
        quiet(cluster, f"import torch\nif rank == 0: raise ValueError\n{wait}", timeout=FAR_S)
    assert list(caught.value.errors) == [0]
    assert quiet(cluster, "rank", timeout=FAR_S).values == {0: 0, 1: 1}


def test_ranks_that_wait_for_one_that_has_ended_are_freed(cluster):
    """Unequal loops: one rank ends its cell, the other waits for it and would for ever."""
    with pytest.raises(RanksFailed, match="rank 0 ended the cell while rank 1 waits") as raised:
        quiet(cluster, "import torch\nif rank: hvd.allreduce(torch.ones(1))", timeout=FAR_S)
    assert {rank: error.name for rank, error in raised.value.errors.items()} == {
        1: "HorovodInternalError"
    }
    assert quiet(cluster, "float(hvd.allreduce(torch.ones(1), op=hvd.Sum))").values == {0: 2, 1: 2}


def test_a_script_that_shuts_horovod_down(cluster):
    """hvd.shutdown() at a script's end leaves a cluster that works."""
    quiet(cluster, "hvd.shutdown()")
    source = "import torch\nfloat(hvd.allreduce(torch.ones(1), op=hvd.Sum))"
    assert quiet(cluster, source, timeout=FAR_S).values == {0: 2, 1: 2}


def test_a_rank_that_does_not_react_is_reported():
    """A rank that nothing can interrupt is named, and the cluster refuses further cells."""
    with wb.Cluster(n=1) as cluster:
        source = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        source += "while True: time.sleep(0.01)"
        with pytest.raises(CellTimeout, match="rank 0 did not react"):
            quiet(cluster, source, timeout=6)
        assert cluster.state == "failed"
        with pytest.raises(ClusterStopped, match="still runs a cell"):
            quiet(cluster, "1")


def test_a_rank_that_fails_beyond_its_cell_is_reported():
    """An error outside the cell's own code ends the cell with that error, and is none for ever."""
    with wb.Cluster(n=1) as cluster:
        source = "import workbench.rank.session as s\ns._session.recorder.end_cell = lambda: 1 / 0"
        with pytest.raises(RanksFailed, match="division by zero") as caught:
            quiet(cluster, source, timeout=FAR_S)
        assert str(caught.value) == (
            "[rank 0] RankFailed: ZeroDivisionError: division by zero, outside the cell's own "
            "code. If it happens again, replace the rank with %cluster restart --ranks 0.\n"
            f"Evidence: {caught.value.evidence}"
        )


@pytest.mark.soak
def test_a_rank_that_does_not_react_is_replaced(cluster):
    """The rank is ended and restarted; the others keep their variables."""
    quiet(cluster, "kept = rank")
    source = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile rank: pass"
    with pytest.raises(CellTimeout, match="rank 1 did not react"):
        quiet(cluster, source, timeout=6)
    assert cluster.state == "failed"
    cluster.restart()
    assert quiet(cluster, "globals().get('kept'), world_size").values == {
        0: (0, 2),
        1: (None, 2),
    }


class Interrupted(TextSink):
    """Shows output to a person who presses Ctrl-C once both ranks have some to be shown."""

    pressed = False
    ranks = frozenset()
    """The ranks that have shown something."""

    def put(self, folded):
        """Show folded output, and press Ctrl-C before what completes the first of both ranks."""
        self.ranks |= set(folded.ranks)
        if not self.pressed and len(self.ranks) == 2:
            self.pressed = True
            signal.raise_signal(signal.SIGINT)
        super().put(folded)


def test_an_interrupt_while_a_message_is_taken_loses_none(cluster):
    """Ctrl-C between a message's arrival and what is done with it: output and end are there."""
    shown = Interrupted()
    with pytest.raises(CellInterrupted):
        cluster.run("print('first')\nimport time; time.sleep(30); print('last')", sink=shown)
    assert shown.text.startswith("[ranks 0-1] first\n")
    assert cluster.state == "ready", cluster.message


def interrupt_after(seconds, thread):
    """Interrupt a thread after some seconds."""
    time.sleep(seconds)
    signal.pthread_kill(thread, signal.SIGINT)


def test_an_interrupt_while_the_ring_is_rebuilt_loses_nothing(cluster):
    """Ctrl-C right after a failure waits for the new ring, then interrupts."""
    quiet(cluster, "kept = rank")
    main = threading.main_thread().ident
    for delay in (0.35, 0.5, 0.7):
        interrupt = InThread(interrupt_after, delay, main)
        with pytest.raises((RanksFailed, CellInterrupted, KeyboardInterrupt)):
            quiet(cluster, "import torch\nif rank: 1/0\nhvd.allreduce(torch.ones(1))")
        with contextlib.suppress(KeyboardInterrupt):  # it may come only now
            interrupt.join()
            time.sleep(0.1)
        assert cluster.state == "ready", cluster.message
    assert cluster["kept"] == [0, 1]
