"""Calls of the kernel that wait for a process or a thread end where it does not answer."""

import os
import signal
import sys
import threading
import time

import psutil
import pytest

import workbench as wb
from workbench.cluster import TextSink
from workbench.cluster.child import Piped
from workbench.cluster.turns import Turns
from workbench.errors import CellInterrupted

AGENT, CONTROLLER = "workbench.rank.agent", "workbench.cluster.controller"


def test_writing_to_a_process_that_reads_nothing_ends():
    """Once its pipe is full; and it can still be ended."""
    child = Piped([sys.executable, "-c", "import time; time.sleep(60)"], lambda _: None)
    began = time.monotonic()
    with pytest.raises(OSError, match="reads nothing"):
        child.write(b"x" * (1 << 21))
    with pytest.raises(OSError, match="reads no more"):
        child.write(b"more")
    child.end(0.5)
    assert time.monotonic() - began < 6
    assert child.poll() == -signal.SIGKILL


def test_everything_that_is_written_arrives():
    """Also what is larger than a pipe."""
    program = "import sys; print(len(sys.stdin.buffer.read(1 << 20)), flush=True)"
    child = Piped([sys.executable, "-c", program], lambda _: None)
    child.write(b"x" * (1 << 20))
    assert child.read().strip() == str(1 << 20).encode()
    child.end(0.5)


def test_an_interrupt_while_it_waits_leaves_no_turn_behind():
    """Those who come later would wait for it without an end."""
    turns = Turns()
    held, go_on = threading.Event(), threading.Event()

    def hold():
        with turns.held():
            held.set()
            go_on.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(10)
    for _ in range(20):
        timer = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(CellInterrupted, match="queued before"), turns.held():
            pytest.fail("its turn has not come")
        timer.join()
    go_on.set()
    holder.join()
    last = threading.Thread(target=lambda: turns.held().__enter__(), daemon=True)
    last.start()
    last.join(5)
    assert not last.is_alive()


@pytest.mark.parametrize("module", [AGENT, CONTROLLER])
def test_a_cluster_with_a_stopped_process_can_be_stopped(module):
    """Its agent or controller is SIGSTOPped: nothing that it should answer is waited for long."""
    cluster = wb.Cluster(n=1).start()
    (pid,) = [p.pid for p in psutil.Process().children() if module in p.cmdline()]
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    assert set(cluster.samples()) <= {info.vm for info in cluster.ranks}
    cluster.memory_bytes()
    cluster.stop()
    assert time.monotonic() - began < 20
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda cluster: cluster.run("1"), "this cell"),
        (lambda cluster: cluster.restart([1]), "replacing rank 1"),
        (lambda cluster: cluster["x"], "pull x"),
    ],
    ids=["a cell", "a restart", "a pull"],
)
def test_what_waits_for_a_background_cell_says_so_and_can_be_interrupted(call, what, capsys):
    """The line comes after a second; the interrupt ends the wait, and nothing else."""
    main = threading.main_thread().ident
    with wb.Cluster(n=2) as cluster:
        running = cluster.run_in_background("import time; time.sleep(4); 'done'", sink=TextSink())
        timer = threading.Timer(2.0, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        with pytest.raises(CellInterrupted, match=f"{what}.*interrupted while it waited"):
            call(cluster)
        timer.join()
        said = capsys.readouterr().out
        assert what in said
        assert "waiting for the cells that were queued before" in said
        assert running.result(30).values == {0: "done", 1: "done"}
        assert cluster.run("1", sink=TextSink()).values == {0: 1, 1: 1}


def test_a_rank_that_was_stopped_for_long_is_there_with_its_variables(monkeypatch):
    """As after a pause of its VM: ipyparallel gives up an engine for good, after so many beats."""
    monkeypatch.setattr("workbench.cluster.controller_process._HEART_PERIOD_MS", 5)
    with wb.Cluster(n=2) as cluster:
        cluster.run("kept = rank * 10", sink=TextSink())
        pid = cluster.ranks[1].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(5)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert cluster["kept"] == [0, 10]
        cluster.restart("0")
        assert cluster.run("globals().get('kept')", sink=TextSink()).values == {0: None, 1: 10}
