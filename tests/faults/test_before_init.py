"""What goes wrong in a rank that is replaced, before its hvd.init(): the others stand."""

import os
import signal
import time

import psutil
import pytest

from workbench.errors import (
    ClusterStopped,
    StartFailed,
)

from .box import (
    SMALL,
    Fault,
    bounded,
    interrupt,
    ours,
    play,
    quiet,
    status,
    when,
)

FEW = """
opened, limit = len(os.listdir('/proc/self/fd')), resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 2, limit[1]))
"""
STAGE = "before init"
FAULTS = (
    Fault(STAGE, "a rank raises", "raise ValueError('boom')", "ValueError.*boom"),
    Fault(STAGE, "a rank is SIGKILLed", "os.kill(os.getpid(), 9)", "killed by SIGKILL", (1,)),
    Fault(STAGE, "a rank segfaults", "ctypes.string_at(0)", "killed by SIGSEGV", (1,)),
    Fault(STAGE, "a rank calls os._exit", "os._exit(7)", "exit status 7", (1,)),
    Fault(STAGE, "a rank calls sys.exit", "sys.exit(8)", "SystemExit.*8"),
    Fault(STAGE, "a rank raises KeyboardInterrupt", "raise KeyboardInterrupt", "KeyboardInterrupt"),
    Fault(STAGE, "a rank has no memory left", SMALL, "MemoryError"),
    Fault(STAGE, "a rank has no descriptor left", FEW, "hvd.init.*Too many open files"),
    Fault(STAGE, "a rank is SIGSTOPped for a while", by="stopped_before_init"),
    Fault(STAGE, "the kernel is interrupted", by="interrupted_before_init"),
    Fault(STAGE, "the agent is killed", by="agent_killed_before_init"),
    Fault(STAGE, "the controller is killed", by="controller_killed_before_init"),
)


@pytest.mark.timeout(60, method="signal")
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_fault(fault, request):
    """The fault is named; survivors keep their variables; the way on works; nothing is left."""
    play(fault, globals()[fault.by or "init_fails"], request)


def init_fails(box, fault):
    """Those that wait in hvd.init() for a new rank are freed, and hold what they held."""
    cluster = box.cluster
    box.put("meet", fault.code)
    with bounded(10), pytest.raises(StartFailed, match=rf"(?s){fault.says}"):
        cluster.restart([1])
    assert cluster.state == "failed"
    assert tuple(r.rank for r in cluster.ranks if r.state == "dead") == fault.dead
    with pytest.raises(ClusterStopped, match="%cluster restart --ranks"):
        quiet(cluster, "1")
    cluster.restart([1])
    quiet(cluster, "kept = 10", ranks=[1])
    box.lives()


def stopped_before_init(box):
    cluster = box.cluster
    path = box.put("meet", "os.kill(os.getpid(), signal.SIGSTOP)")

    def go_on():
        time.sleep(1)
        (pid,) = [pid for pid in ours() if status(pid) == psutil.STATUS_STOPPED]
        os.kill(pid, signal.SIGCONT)

    waiter = when(lambda: not path.exists(), go_on)
    with bounded(20):
        cluster.restart([1])
    waiter.join()
    quiet(cluster, "kept = 10", ranks=[1])
    box.lives()


def interrupted_before_init(box):
    cluster = box.cluster
    path = box.put("meet", "time.sleep(1)")
    when(lambda: not path.exists(), interrupt)
    with bounded(20), pytest.raises(KeyboardInterrupt):
        cluster.restart([1])
    quiet(cluster, "kept = 10", ranks=[1])
    box.lives()


def agent_killed_before_init(box):
    cluster, agent = box.cluster, box.agent
    path = box.put("meet", "time.sleep(5)")
    when(lambda: not path.exists(), lambda: os.kill(agent, signal.SIGKILL))
    with bounded(20), pytest.raises(StartFailed, match=r"agent of this machine .*SIGKILL"):
        cluster.restart([1])
    box.lost()


def controller_killed_before_init(box):
    cluster, controller = box.cluster, box.controller
    path = box.put("meet", "time.sleep(5)")
    when(lambda: not path.exists(), lambda: os.kill(controller, signal.SIGKILL))
    with bounded(20), pytest.raises(StartFailed, match="controller was killed by SIGKILL"):
        cluster.restart([1])
    box.lost()
