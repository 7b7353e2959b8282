"""After a fault while a cluster stops, it still stops in time, and nothing stays."""

import contextlib
import os
import signal

import psutil
import pytest
from timers import InThread, eventually, later

from .box import (
    AGENT,
    CONTROLLER,
    Fault,
    across,
    alive,
    bounded,
    case_for_each,
    interrupt,
    leader,
    ours,
    quiet,
    status,
)

FAULTS = (
    Fault("a child lives on", by="child_lives_on", ring=False, soak=True),
    Fault("a rank raises", by="raises_while_stopping", ring=False, soak=True),
    Fault("a rank is SIGSTOPped", by="stopped_while_stopping"),
    Fault("a rank ignores it", by="ignores_the_stop", ring=False),
    Fault("the agent is killed", by="agent_killed_while_stopping", ring=False),
    Fault("the agent is killed and a rank SIGSTOPped", by="agent_killed_rank_stopped", ring=False),
    Fault("the agent is SIGSTOPped", by="agent_stopped_while_stopping", ring=False),
    Fault("the controller is SIGSTOPped", by="controller_stopped_while_stopping", ring=False),
    Fault("the kernel is interrupted", by="interrupted_while_stopping", ring=False),
    Fault("it is stopped twice at once", by="stopped_twice_at_once", ring=False),
    Fault("a VM is cut off", by="vm_cut_while_stopping", soak=True),
)

test_fault = case_for_each(FAULTS)


@contextlib.contextmanager
def stopping(box, source=""):
    """A cluster whose stop, in the body, takes a bounded time and leaves nothing."""
    box.close()
    cluster = box.new(n=2).start()
    try:
        quiet(cluster, f"{box.setup}\n{source}")
        pids = {info.pid for info in cluster.ranks}
        with bounded():
            yield cluster
        assert cluster.state == "stopped"
        assert eventually(lambda: not ours()), [(p, status(p)) for p in ours()]
        assert eventually(lambda: not any(map(alive, pids)))
    finally:
        cluster.stop()


def child_lives_on(box):
    source = """
child = os.fork()
if not child:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True: time.sleep(1)
"""
    with stopping(box, source) as cluster:
        children = cluster["child"]
        assert all(map(psutil.pid_exists, children))
        cluster.stop()
    assert eventually(lambda: not any(map(alive, children)))


def raises_while_stopping(box):
    with stopping(box, "signal.signal(signal.SIGTERM, lambda *_: 1 / 0)") as cluster:
        cluster.stop()


def stopped_while_stopping(box):
    with stopping(box) as cluster:
        os.kill(cluster.ranks[1].pid, signal.SIGSTOP)
        cluster.stop()


def ignores_the_stop(box):
    with stopping(box, "signal.signal(signal.SIGTERM, signal.SIG_IGN)") as cluster:
        cluster.stop()


def agent_killed_while_stopping(box):
    with stopping(box, "signal.signal(signal.SIGTERM, signal.SIG_IGN)") as cluster:
        pids = [info.pid for info in cluster.ranks]
        agent = leader(AGENT)
        with later(0.2, lambda: os.kill(agent, signal.SIGKILL)):
            cluster.stop()
            assert eventually(lambda: not any(map(alive, pids)))


def agent_killed_rank_stopped(box):
    with stopping(box) as cluster:
        pids = [info.pid for info in cluster.ranks]
        os.kill(pids[1], signal.SIGSTOP)
        os.kill(leader(AGENT), signal.SIGKILL)
        cluster.stop()
        assert eventually(lambda: not any(map(alive, pids)))  # without their agent, by themselves


def agent_stopped_while_stopping(box):
    with stopping(box) as cluster:
        pids = [info.pid for info in cluster.ranks]
        os.kill(leader(AGENT), signal.SIGSTOP)
        cluster.stop()  # which kills the agent
        assert eventually(lambda: not any(map(alive, pids)))  # without their agent, by themselves


def controller_stopped_while_stopping(box):
    with stopping(box) as cluster:
        os.kill(leader(CONTROLLER), signal.SIGSTOP)
        cluster.stop()


def interrupted_while_stopping(box):
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    with stopping(box, deaf) as cluster, later(0.1, interrupt), pytest.raises(KeyboardInterrupt):
        cluster.stop()


def stopped_twice_at_once(box):
    with stopping(box) as cluster:
        for stop in [InThread(cluster.stop) for _ in range(2)]:
            stop.join()


def vm_cut_while_stopping(box, machines):
    box.close()
    with across(machines, box) as cluster:
        machines.cut("vm2")
        with bounded():
            cluster.stop()
        assert cluster.state == "stopped"
