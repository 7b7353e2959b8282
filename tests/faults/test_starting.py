"""What goes wrong while a cluster starts: it is told, and nothing stays."""

import contextlib
import os
import signal
import time

import psutil
import pytest
from disks import fill, small_disk
from timers import later, within

import workbench as wb
from workbench.errors import StartFailed

from .box import (
    ASK,
    CONTROLLER,
    ENDED,
    SETUP,
    Fault,
    bounded,
    case_for_each,
    interrupt,
    leader,
    ours,
    quiet,
    status,
    when,
)

FAULTS = (
    Fault("a rank raises", "raise ValueError('boom')", "ValueError.*boom"),
    Fault("a rank is SIGKILLed", "os.kill(os.getpid(), 9)", "killed by SIGKILL"),
    Fault("a rank segfaults", "ctypes.string_at(0)", "killed by SIGSEGV"),
    Fault("a rank calls os._exit", "os._exit(7)", "exit status 7"),
    Fault("the agent is killed", "os.kill(os.getppid(), 9)", "agent of .*SIGKILL"),
    Fault("a rank is SIGSTOPped for a while", by="stopped_while_starting"),
    Fault("the controller is killed", by="controller_killed_while_starting"),
    Fault("the kernel is interrupted", by="interrupted_while_starting"),
    Fault("the disk is full", by="full_disk_while_starting"),
)

test_fault = case_for_each(FAULTS, usual="start_fails")


@contextlib.contextmanager
def starting(box):
    """A cluster that is not started yet, with no other beside it; the start fails."""
    box.close()
    cluster = wb.Cluster(n=2)
    try:
        with bounded(25):
            yield cluster
        assert cluster.state == "stopped"
        assert within(20, lambda: not ours())
    finally:
        cluster.stop()


def start_fails(box, fault):
    with starting(box) as cluster:
        box.put("hello", fault.code)
        with pytest.raises(StartFailed, match=rf"(?s){fault.says}"):
            cluster.start()


def stopped_while_starting(box):
    box.close()
    box.put("hello", "os.kill(os.getpid(), signal.SIGSTOP)")
    stopped = []

    def asleep():
        stopped[:] = [pid for pid in ours() if status(pid) == psutil.STATUS_STOPPED]
        return stopped

    waiter = when(asleep, lambda: (time.sleep(1), os.kill(stopped[0], signal.SIGCONT)))
    with bounded(25), wb.Cluster(n=2) as cluster:
        assert quiet(cluster, "rank").values == {0: 0, 1: 1}
    waiter.join()
    assert stopped


def controller_killed_while_starting(box):
    with starting(box) as cluster:

        def kill():
            os.kill(leader(CONTROLLER), signal.SIGKILL)

        box.while_in("hello", "time.sleep(5)", kill)
        with pytest.raises(StartFailed, match=ENDED[CONTROLLER]):
            cluster.start()


def interrupted_while_starting(box):
    for delay in (0.1, 1.0):
        with starting(box) as cluster, later(delay, interrupt), pytest.raises(KeyboardInterrupt):
            cluster.start()
    with starting(box) as cluster:
        box.while_in("meet", "time.sleep(5)", interrupt)
        with pytest.raises(KeyboardInterrupt):
            cluster.start()


def full_disk_while_starting(box, tmp_path, monkeypatch):
    """The agent's own folder: a new rank says so or does without, and later ones start."""
    box.close()
    with small_disk(tmp_path / "disk") as folder:
        monkeypatch.setenv("TMPDIR", str(folder))
        with wb.Cluster(n=2) as cluster:
            quiet(cluster, SETUP)
            assert list(folder.glob("workbench-rank-*"))
            full = fill(folder)
            told = "No space left on device"
            with bounded(25):
                try:
                    cluster.restart([1])
                except StartFailed as error:
                    told = str(error)
            assert "No space left on device" in told
            full.unlink()
            cluster.restart([1])
            assert quiet(cluster, ASK).values == {0: (0, 2.0), 1: (None, 2.0)}
