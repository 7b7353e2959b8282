"""Ranks on this machine: up, down, cells on them, and what happens when one fails."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

import workbench as wb
from workbench.cluster import Kept, TextSink
from workbench.errors import (
    CellInterrupted,
    CellTimeout,
    ClusterError,
    ClusterStopped,
    RanksFailed,
    UsageError,
)


def quiet(cluster, source, **options):
    return cluster.run(source, sink=TextSink(), **options)


def gone(pids, seconds=5.0):
    """Whether all processes end within some seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(psutil.pid_exists(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def folders(pids):
    """The run folders that processes were started with."""
    words = [word for pid in pids for word in psutil.Process(pid).cmdline()]
    return {Path(word) for word in words if re.fullmatch(r"/.*/workbench-\w+", word)}


def children():
    return {process.pid for process in psutil.Process().children(recursive=True)}


def listening():
    """The TCP ports that this process listens on."""
    connections = psutil.Process().net_connections("tcp")
    return {found.laddr.port for found in connections if found.status == psutil.CONN_LISTEN}


def test_names_in_the_namespace(cluster):
    """Every rank has rank, local_rank, world_size, device and hvd."""
    result = quiet(cluster, "(rank, local_rank, world_size, str(device), hvd.size())")
    assert result.values == {0: (0, 0, 2, "cpu", 2), 1: (1, 1, 2, "cpu", 2)}


def test_ranks_share_the_cores(cluster):
    """Two ranks use at most the machine's cores between them."""
    threads = quiet(cluster, "import torch; torch.get_num_threads()").values
    assert sum(threads.values()) <= max(2, len(os.sched_getaffinity(0)))
    assert [info.threads for info in cluster.ranks] == list(threads.values())


def test_ranks_are_told_apart(cluster):
    """`ranks` names each rank's VM and process."""
    pids = quiet(cluster, "import os; os.getpid()").values
    assert {info.rank: info.pid for info in cluster.ranks} == pids
    assert {info.state for info in cluster.ranks} == {"ready"}


def test_a_subset_of_ranks(cluster):
    """A cell runs only where it was sent."""
    assert quiet(cluster, "rank", ranks="1").values == {1: 1}
    assert quiet(cluster, "rank", ranks=[0]).values == {0: 0}
    assert quiet(cluster, "rank", ranks="0-1").values == {0: 0, 1: 1}


@pytest.mark.parametrize("ranks", ["2", "0-5", "x", "", "1-0", "-1"])
def test_ranks_that_do_not_exist(cluster, ranks):
    """Asking for a rank that is not there says which there are."""
    with pytest.raises(UsageError, match=r"ranks .* asked for"):
        quiet(cluster, "rank", ranks=ranks)


def test_output_is_folded_and_streamed(cluster):
    """Equal lines appear once while the cell still runs."""
    lines = []

    class Sink(TextSink):
        def put(self, folded):
            lines.append((time.monotonic(), folded))
            super().put(folded)

    source = "import time\nprint('first')\ntime.sleep(1)\nprint('second of', rank)"
    result = cluster.run(source, sink=Sink())
    assert result.output.splitlines()[0] == "[ranks 0-1] first"
    assert sorted(result.output.splitlines()[1:]) == [
        "[rank 0] second of 0",
        "[rank 1] second of 1",
    ]
    assert lines[-1][0] - lines[0][0] > 0.5


def test_every_line_of_a_flood_arrives(cluster):
    """Ten thousand lines of each rank are all there."""
    result = quiet(cluster, "for i in range(10_000): print(i if i % 2 else (i, rank))")
    folded = re.findall(r"^\[ranks 0-1\] \d+$", result.output, re.MULTILINE)
    own = re.findall(r"^\[rank [01]\] \(\d+, [01]\)$", result.output, re.MULTILINE)
    assert len(own) == 10_000
    # folding is an economy, not a promise; that nothing is lost is one
    assert (
        2 * len(folded) + len(re.findall(r"^\[rank [01]\] \d+$", result.output, re.MULTILINE))
        == 10_000
    )


def test_stderr_and_threads_are_heard(cluster):
    """What goes to stderr, or is printed by a thread of the cell, belongs to the output."""
    source = """
import sys, threading
print("to stderr", file=sys.stderr)
thread = threading.Thread(target=print, args=("from a thread",)); thread.start(); thread.join()
"""
    output = quiet(cluster, source).output
    said = [line.partition("] ")[2] for line in output.splitlines()]
    assert set(said) == {"to stderr", "from a thread"}


def test_values(cluster):
    """The last expression comes back by rank; a semicolon hides but does not lose it."""
    assert quiet(cluster, "rank * 10").values == {0: 0, 1: 10}
    result = quiet(cluster, "rank * 10;")
    assert result.output == ""
    assert quiet(cluster, "x = 1").values == {0: None, 1: None}


def test_a_value_that_cannot_travel_says_so(cluster):
    """A value that cannot be pickled stays, with the reason."""
    value = quiet(cluster, "lambda: rank").values[0]
    assert isinstance(value, Kept)
    assert "pickle" in value.reason


def test_push_and_pull(cluster):
    """Names travel both ways."""
    cluster["numbers"] = [1, 2]
    quiet(cluster, "numbers.append(rank)")
    assert cluster["numbers"] == [[1, 2, 0], [1, 2, 1]]
    with pytest.raises(UsageError, match="nowhere"):
        cluster["nowhere"]


def test_cells_see_ipython(cluster):
    """Magics and shell commands work in a cell as in a notebook."""
    assert "[ranks 0-1] shell" in quiet(cluster, "!echo shell").output
    assert "Wall time" in quiet(cluster, "%time sum(range(10))").output


def test_top_level_await(cluster):
    """A cell may await, as in a notebook."""
    source = "import asyncio\nawait asyncio.sleep(0.01)\nawait asyncio.sleep(0.01, result=rank)"
    assert quiet(cluster, source).values == {0: 0, 1: 1}


def test_an_error_is_told_once(cluster):
    """The same error on both ranks is one error with both ranks; variables stand."""
    with pytest.raises(RanksFailed) as caught:
        quiet(cluster, "kept = 5\n1/0")
    assert list(caught.value.errors) == [0, 1]
    assert str(caught.value).count("[ranks 0-1] ZeroDivisionError") == 1
    assert cluster["kept"] == [5, 5]


def test_a_syntax_error_is_an_error(cluster):
    """A cell that cannot be compiled says so."""
    with pytest.raises(RanksFailed, match="SyntaxError"):
        quiet(cluster, "for for")


def test_a_rank_that_fails_frees_the_others(cluster):
    """One rank raises while the other waits in a collective: it is freed, and all goes on."""
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
    quiet(cluster, "train(False)\ntrain(False)", timeout=30)
    quiet(cluster, "hvd.broadcast_parameters(model.state_dict(), root_rank=0)")
    sums = quiet(cluster, "float(model.weight.sum())").values
    assert sums[0] == sums[1]


@pytest.mark.parametrize(
    "source", ["time.sleep(60)", "hvd.allreduce(torch.ones(1)) if rank else time.sleep(60)"]
)
def test_timeout(cluster, source):
    """A cell past its time is interrupted wherever it is, and says where that was."""
    with pytest.raises(CellTimeout) as caught:
        quiet(cluster, f"import time, torch\n{source}", timeout=1)
    assert caught.value.unfinished == (0, 1)
    assert "time.sleep(60)" in str(caught.value)
    assert quiet(cluster, "float(hvd.allreduce(torch.ones(1), op=hvd.Sum))").values == {0: 2, 1: 2}


def test_interrupt():
    """Ctrl-C reaches ranks that compute and ranks that wait; the cluster is usable at once."""
    script = """
        import signal, threading, workbench as wb
        from workbench.cluster import TextSink
        from workbench.errors import CellInterrupted
        with wb.Cluster(n=2) as cluster:
            main = threading.main_thread().ident
            for _ in range(3):
                threading.Timer(1.0, signal.pthread_kill, (main, signal.SIGINT)).start()
                cell = "hvd.allreduce(torch.ones(1)) if rank else time.sleep(60)"
                try:
                    cluster.run("import time, torch\\n" + cell, sink=TextSink())
                except CellInterrupted:
                    print(cluster.run("rank", sink=TextSink()).values, flush=True)
    """
    # a process of its own, as a script or a kernel is: pytest's belongs to its plugins too
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines() == ["{0: 0, 1: 1}"] * 3, done.stderr


def test_in_the_background(cluster):
    """A cell in the background leaves the caller free; its result comes later."""
    sink = TextSink()
    future = cluster.run_in_background("import time\ntime.sleep(0.5)\nrank", sink=sink)
    assert not future.done()
    assert future.result(timeout=20).values == {0: 0, 1: 1}
    assert sink.text == "[rank 0] 0\n[rank 1] 1\n" or sink.text == "[rank 1] 1\n[rank 0] 0\n"


def test_starting_twice(cluster):
    """A cluster that runs cannot be started again."""
    with pytest.raises(ClusterError, match="stop it first"):
        cluster.start()


@pytest.mark.parametrize("n", [0, -1, "2", 1.5, True])
def test_a_number_of_ranks_that_makes_no_sense(n):
    """A cluster has at least one rank."""
    with pytest.raises(UsageError, match="n is a number from 1"):
        wb.Cluster(n=n)


def test_stop_leaves_nothing():
    """After stop there is no process, no listening port, no folder; timings stand."""
    before, ports = children(), listening()
    with wb.Cluster(n=1) as cluster:
        assert listening() != ports
        quiet(cluster, "import subprocess; child = subprocess.Popen(['sleep', '1000'])")
        started = children() - before
        assert len(started) >= 3  # controller, engine, and what the cell started
        (folder,) = folders(started)
        assert folder.is_dir()
    assert gone(started)
    assert not folder.exists()
    assert listening() == ports
    assert len(cluster.timings.to_frame()) == 0
    with pytest.raises(ClusterStopped, match="stopped"):
        quiet(cluster, "1")
    cluster.stop()


def test_start_again_after_stop():
    """A stopped cluster starts again, with timings of its own."""
    cluster = wb.Cluster(n=1)
    for _ in range(2):
        cluster.start()
        assert quiet(cluster, "world_size").values == {0: 1}
        cluster.stop()


def test_a_rank_that_dies_is_named():
    """A killed rank is named with its signal, and the other is freed."""
    with wb.Cluster(n=2) as cluster:
        source = "import os, signal, torch\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        with pytest.raises(RanksFailed, match="SIGKILL") as caught:
            quiet(cluster, source + "hvd.allreduce(torch.ones(1))")
        assert list(caught.value.errors) == [1]
        assert [info.state for info in cluster.ranks] == ["ready", "dead"]
        with pytest.raises(ClusterStopped, match="SIGKILL"):
            quiet(cluster, "1")


def test_a_kernel_that_crashes_leaves_nothing():
    """When the process that started a cluster is killed, its processes end and its folder goes."""
    script = """
        import time, psutil, workbench as wb
        cluster = wb.Cluster(n=2).start()
        print(*[p.pid for p in psutil.Process().children(recursive=True)], flush=True)
        time.sleep(1000)
    """
    kernel = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    pids = [int(word) for word in kernel.stdout.readline().split()]
    assert len(pids) >= 3
    (folder,) = folders(pids)
    assert folder.is_dir()
    kernel.kill()
    kernel.wait()
    assert gone(pids)
    assert not folder.exists()


def test_a_start_that_fails_takes_everything_down(monkeypatch):
    """Where Horovod cannot be loaded the error says what to do, and nothing is left running."""
    before = children()
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "without_horovod"))
    cluster = wb.Cluster(n=1)
    with pytest.raises(wb.errors.HorovodMissing, match="build-horovod"):
        cluster.start()
    assert children() == before
    assert cluster.state == "stopped"


def test_stopping_while_it_starts():
    """Another thread stops a cluster that is still starting: said so, and nothing is left."""
    before = children()
    cluster = wb.Cluster(n=1)
    threading.Timer(1.0, cluster.stop).start()
    with pytest.raises(ClusterStopped, match="stopped while it started"):
        cluster.start()
    assert cluster.state == "stopped"
    assert children() == before


def test_calibration_predicts_what_it_measured(cluster):
    """The fitted line grows with size; an allreduce takes time even when it is empty."""
    fabric = cluster.calibrate()
    assert fabric.n == 2
    assert fabric.predict_us(1 << 24) > fabric.predict_us(1 << 12) > 0
    assert fabric.busbw_gbps > 0


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
        quiet(cluster, f"import torch\nif rank == 0: raise ValueError\n{wait}", timeout=30)
    assert list(caught.value.errors) == [0]
    assert quiet(cluster, "rank", timeout=10).values == {0: 0, 1: 1}


def test_ranks_that_wait_for_one_that_has_ended_are_freed(cluster):
    """Unequal loops: one rank ends its cell, the other waits for it and would for ever."""
    with pytest.raises(RanksFailed, match="HorovodInternalError"):
        quiet(cluster, "import torch\nif rank: hvd.allreduce(torch.ones(1))", timeout=30)
    assert quiet(cluster, "float(hvd.allreduce(torch.ones(1), op=hvd.Sum))").values == {0: 2, 1: 2}


def test_a_script_that_shuts_horovod_down(cluster):
    """hvd.shutdown() at a script's end leaves a cluster that works."""
    quiet(cluster, "hvd.shutdown()")
    source = "import torch\nfloat(hvd.allreduce(torch.ones(1), op=hvd.Sum))"
    assert quiet(cluster, source, timeout=20).values == {0: 2, 1: 2}


def test_cells_in_the_background_take_turns(cluster):
    """Queued cells run in order; a failure of the first does not spoil the second."""
    sinks = [TextSink() for _ in range(3)]
    sources = [
        "import torch, time; time.sleep(0.3)\nif rank: 1/0\nhvd.allreduce(torch.ones(1))",
        "float(hvd.allreduce(torch.ones(1), op=hvd.Sum))",
        "rank",
    ]
    futures = [
        cluster.run_in_background(source, sink=sink)
        for source, sink in zip(sources, sinks, strict=True)
    ]
    with pytest.raises(RanksFailed, match="ZeroDivisionError"):
        futures[0].result(timeout=30)
    assert futures[1].result(timeout=30).values == {0: 2.0, 1: 2.0}
    assert futures[2].result(timeout=30).values == {0: 0, 1: 1}


def test_two_streams_in_turn_lose_nothing(cluster):
    """A cell that changes between stdout and stderr at every line has every line shown."""
    source = """
import sys
for i in range(30_000):
    print(f"out {i} {rank}"); print(f"err {i} {rank}", file=sys.stderr)
"""
    said = re.findall(r"(?:out|err) \d+ [01]", quiet(cluster, source).output)
    assert len(said) == len(set(said)) == 2 * 2 * 30_000


def test_a_logger_of_an_earlier_cell_is_heard(cluster):
    """A handler that keeps the first cell's stderr still shows in the second cell."""
    quiet(cluster, "import logging, sys\nlog = logging.getLogger('mine')\n"
                   "log.addHandler(logging.StreamHandler())\nlog.setLevel('INFO')")  # fmt: skip
    assert "[ranks 0-1] again" in quiet(cluster, "log.info('again')").output


def test_what_is_written_past_python_is_heard(cluster):
    """Subprocesses, the C level and forked workers show in the cell's output."""
    source = """
import os, subprocess
subprocess.run(["echo", "from a subprocess"], check=True)
os.write(2, b"from the C level\\n")
if os.fork() == 0:
    print("from a fork", flush=True)
    os._exit(0)
os.wait();
"""
    said = [line.partition("] ")[2] for line in quiet(cluster, source).output.splitlines()]
    assert set(said) == {"from a subprocess", "from the C level", "from a fork"}


def test_a_rank_that_does_not_react_is_told():
    """A rank that nothing can interrupt is named, and the cluster refuses further cells."""
    with wb.Cluster(n=1) as cluster:
        source = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
        with pytest.raises(CellTimeout, match="rank 0 did not react"):
            quiet(cluster, source, timeout=1)
        assert cluster.state == "failed"
        with pytest.raises(ClusterStopped, match="still runs a cell"):
            quiet(cluster, "1")


def test_a_rank_that_fails_beyond_its_cell_is_told():
    """An error outside the cell's own code ends the cell with that error, and is none for ever."""
    with wb.Cluster(n=1) as cluster:
        source = "import workbench.rank.session as s\ns._session.recorder.end_cell = lambda: 1 / 0"
        with pytest.raises(RanksFailed, match="division by zero"):
            quiet(cluster, source, timeout=20)


def test_a_rank_that_does_not_react_is_replaced():
    """It is ended and started anew; the others keep their variables."""
    with wb.Cluster(n=2) as cluster:
        quiet(cluster, "kept = rank")
        source = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile rank: pass"
        with pytest.raises(CellTimeout, match="rank 1 did not react"):
            quiet(cluster, source, timeout=1)
        assert cluster.state == "failed"
        cluster.restart()
        assert quiet(cluster, "globals().get('kept'), world_size").values == {
            0: (0, 2),
            1: (None, 2),
        }


def test_an_interrupt_while_the_ring_forms_anew_loses_nothing(cluster):
    """Ctrl-C right after a failure waits for the new ring, then interrupts."""
    quiet(cluster, "kept = rank")
    main = threading.main_thread().ident
    for delay in (0.35, 0.5, 0.7):
        timer = threading.Timer(delay, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        with pytest.raises((RanksFailed, CellInterrupted, KeyboardInterrupt)):
            quiet(cluster, "import torch\nif rank: 1/0\nhvd.allreduce(torch.ones(1))")
        with contextlib.suppress(KeyboardInterrupt):  # it may come only now
            timer.join()
            time.sleep(0.1)
        assert cluster.state == "ready", cluster.message
    assert cluster["kept"] == [0, 1]
