"""Calls of the kernel that wait for a process or a thread end where it does not answer."""

import itertools
import os
import signal
import sys
import threading
import time

import psutil
import pytest
from clusters import children, waiting_for
from timers import FAR_S, InThread, eventually, later, when

import workbench as wb
from workbench.cluster import TextSink
from workbench.cluster.agent import Agent
from workbench.cluster.threads import FairLock
from workbench.errors import CellInterrupted
from workbench.wire.wakeup import SignalSafeEvent

AGENT, CONTROLLER = "workbench.agent.program", "workbench.cluster.controller"


@pytest.mark.soak
def test_what_is_sent_to_an_agent_that_reads_nothing():
    """No call waits for it, however much is sent; all of it arrives when it reads again."""
    agent = Agent(None, 1)
    try:
        agent.wait_until_greeted(time.monotonic() + 60)
        os.kill(agent.hello.pid, signal.SIGSTOP)
        questions = [
            agent.post("clock") for _ in range(20_000)
        ]  # 2 MB: more than fits into a socket's buffer
        os.kill(agent.hello.pid, signal.SIGCONT)
        last = agent.answer(questions[-1], time.monotonic() + 60)
        assert isinstance(last, float)
        # what was lost with a connection that was silent for too long is asked again later
        assert eventually(lambda: all(question.answer is not None for question in questions))
    finally:
        agent.close()


def test_an_agent_that_is_stopped_is_ended():
    """One that does not react is killed after a while."""
    agent = Agent(None, 1)
    agent.wait_until_greeted(time.monotonic() + 60)
    pid = agent.hello.pid
    os.kill(pid, signal.SIGSTOP)
    agent.close()
    assert not psutil.pid_exists(pid)
    assert not agent.folder.exists()


def raised_at(step, error, call):
    """Raise an error before the given opcode of a call; return whether the call came so far."""
    left = itertools.count(step, -1)

    def trace(frame, event, _):
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and next(left) == 0:
            raise error
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except error:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("method", ["wait", "set"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_exception_anywhere_in_an_event_leaves_no_lock_locked(error, method):
    """The stop button, or a lack of memory, once left that of a `threading.Event` locked."""
    event = SignalSafeEvent()
    call = {"wait": lambda: event.wait(0.001), "set": event.set}[method]
    steps = 0
    # in a thread: Python leaves the handled exception set where it is interrupted at some opcodes
    while InThread(raised_at, steps, error, call).join():
        InThread(event.set).join()
        assert event.wait(FAR_S)
        steps += 1
    assert steps > 5


def test_an_interrupt_while_it_waits_leaves_no_turn_behind():
    """Those who come later would wait for it without an end."""
    turns = FairLock()
    held, go_on = threading.Event(), threading.Event()

    def hold():
        with turns.held():
            held.set()
            go_on.wait(60)

    holder = InThread(hold)
    held.wait(60)
    errors = []
    while len(errors) < 20:
        try:
            with later(0.02, lambda: os.kill(os.getpid(), signal.SIGINT)), turns.held():
                pytest.fail("its turn has not come")
        except CellInterrupted as error:
            errors.append(str(error))
        except KeyboardInterrupt:
            pass  # on a busy machine it may come before the wait
    assert all("queued before" in error for error in errors)
    go_on.set()
    holder.join()
    InThread(turns.held().__enter__).join()


@pytest.mark.soak
@pytest.mark.parametrize("module", [AGENT, CONTROLLER])
def test_a_cluster_with_a_stopped_process_can_be_stopped(module):
    """Its agent or controller is SIGSTOPped: nothing that it should answer is waited for long."""
    before = children(module)  # another cluster may run too
    with wb.Cluster(n=1) as cluster:
        (pid,) = [one.pid for one in children(module) if one not in before]
        os.kill(pid, signal.SIGSTOP)
        assert set(cluster.samples()) <= {info.vm for info in cluster.ranks}
        cluster.memory_bytes()
        cluster.stop()
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
def test_what_waits_for_a_background_cell_says_so_and_can_be_interrupted(
    cluster, call, what, capsys, tmp_path
):
    """A line says so; the interrupt, which comes then, ends the wait, and nothing else."""
    main, mark, said = threading.main_thread().ident, tmp_path / "mark", []

    def is_said():
        said.append(capsys.readouterr().out)
        return "waiting for the cells that were queued before" in "".join(said)

    running = cluster.run_in_background(f"{waiting_for(mark)}'done'", sink=TextSink())
    waiter = when(is_said, lambda: signal.pthread_kill(main, signal.SIGINT))
    with pytest.raises(CellInterrupted, match=f"{what}.*interrupted while it waited"):
        call(cluster)
    waiter.join()
    mark.touch()
    assert what in "".join(said)
    assert running.result(100).values == {0: "done", 1: "done"}
    assert cluster.run("1", sink=TextSink()).values == {0: 1, 1: 1}


@pytest.mark.soak
def test_a_rank_that_was_stopped_for_long_is_there_with_its_variables(monkeypatch):
    """As after a pause of its VM: ipyparallel gives up an engine for good, after so many beats."""
    monkeypatch.setattr("workbench.cluster.controller._HEART_PERIOD_MS", 5)
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
