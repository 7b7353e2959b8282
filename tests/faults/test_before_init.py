"""After a fault in a replaced rank before its ring is formed, the other ranks are kept."""

import os
import signal
import time

import psutil
import pytest
from timers import eventually

from workbench.errors import ClusterError, ClusterStopped, StartFailed

from .box import (
    AGENT,
    CONTROLLER,
    ENDED,
    SMALL,
    Fault,
    bounded,
    case_for_each,
    interrupt,
    leader,
    ours,
    quiet,
    status,
)

FEW = """
opened, limit = len(os.listdir('/proc/self/fd')), resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 2, limit[1]))
"""
FAULTS = (
    Fault("a rank raises", "raise ValueError('boom')", "ValueError.*boom"),
    Fault("a rank is SIGKILLed", "os.kill(os.getpid(), 9)", "killed by SIGKILL", (1,)),
    Fault("a rank segfaults", "ctypes.string_at(0)", "killed by SIGSEGV", (1,), soak=True),
    Fault("a rank calls os._exit", "os._exit(7)", "exit status 7", (1,), soak=True),
    Fault("a rank calls sys.exit", "sys.exit(8)", "SystemExit.*8", soak=True),
    Fault(
        "a rank raises KeyboardInterrupt", "raise KeyboardInterrupt", "KeyboardInterrupt", soak=True
    ),
    Fault("a rank has no memory left", SMALL, "MemoryError"),
    Fault("a rank has no descriptor left", FEW, "Too many open files", soak=True),
    Fault("a rank is SIGSTOPped for a while", by="stopped_before_init"),
    Fault("the kernel is interrupted", by="interrupted_before_init"),
    Fault("the agent is killed", by="agent_killed_before_init"),
    Fault("the controller is killed", by="controller_killed_before_init"),
)

test_fault = case_for_each(FAULTS, usual="init_fails")


def init_fails(box, fault):
    """Ranks that form a ring with a new rank are freed, and keep their variables."""
    cluster = box.cluster
    box.put("init_ring", fault.code)
    with bounded(), pytest.raises(StartFailed, match=rf"(?s){fault.says}"):
        cluster.restart([1])
    assert cluster.state == "failed"
    assert tuple(r.rank for r in cluster.ranks if r.state == "dead") == fault.dead
    if fault.dead or fault.code == FEW:
        with pytest.raises(ClusterStopped, match="%cluster restart --ranks"):
            quiet(cluster, "1")
    else:  # all ranks are there: the next cell forms the ring
        assert quiet(cluster, "1").values == {0: 1, 1: 1, 2: 1}
    cluster.restart([1])
    quiet(cluster, "kept = 10", ranks=[1])
    box.lives()


def stopped_before_init(box):
    cluster = box.cluster

    def go_on():
        time.sleep(1)
        (pid,) = eventually(lambda: [pid for pid in ours() if status(pid) == psutil.STATUS_STOPPED])
        os.kill(pid, signal.SIGCONT)

    waiter = box.while_in("init_ring", "os.kill(os.getpid(), signal.SIGSTOP)", go_on)
    with bounded():
        cluster.restart([1])
    waiter.join()
    quiet(cluster, "kept = 10", ranks=[1])
    box.lives()


def interrupted_before_init(box):
    cluster = box.cluster
    box.while_in("init_ring", f"{box.backend.patient}\ntime.sleep(1)", interrupt)
    told = "(?s)interrupted before .* rank 1 are lost, those of all others are kept.*resize -n 3"
    with bounded(), pytest.raises(ClusterError, match=told):
        cluster.restart([1])
    with bounded():
        cluster.resize(3)
    quiet(cluster, "kept = 10", ranks=[1])
    box.lives()


def killed_before_init(box, module):
    cluster, pid = box.cluster, leader(module)
    box.while_in("init_ring", "time.sleep(5)", lambda: os.kill(pid, signal.SIGKILL))
    with bounded(), pytest.raises(StartFailed, match=ENDED[module]):
        cluster.restart([1])
    box.lost()


def agent_killed_before_init(box):
    killed_before_init(box, AGENT)


def controller_killed_before_init(box):
    killed_before_init(box, CONTROLLER)
