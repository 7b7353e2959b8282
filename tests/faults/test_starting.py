"""A fault while a cluster starts is reported, and nothing remains."""

import contextlib
import os
import signal
import socket
import subprocess
import time

import psutil
import pytest
from disks import fill, small_disk
from import_hooks import after_import
from timers import eventually, later, when

from workbench.cluster import warm
from workbench.errors import StartFailed

from .box import (
    AGENT,
    CONTROLLER,
    ENDED,
    Fault,
    bounded,
    case_for_each,
    interrupt,
    leader,
    ours,
    quiet,
    status,
)

FAULTS = (
    Fault("a rank raises", "raise ValueError('boom')", "ValueError.*boom", ring=False),
    Fault("a rank is SIGKILLed", "os.kill(os.getpid(), 9)", "killed by SIGKILL"),
    Fault("a rank segfaults", "ctypes.string_at(0)", "killed by SIGSEGV", ring=False, soak=True),
    Fault("a rank calls os._exit", "os._exit(7)", "exit status 7", ring=False, soak=True),
    Fault("the agent is killed", "os.kill(os.getppid(), 9)", "agent of .*SIGKILL", ring=False),
    Fault("a rank is SIGSTOPped for a while", by="stopped_while_starting", ring=False, soak=True),
    Fault("the controller is killed", by="controller_killed_while_starting", ring=False),
    Fault("the kernel is interrupted", by="interrupted_while_starting"),
    Fault("the disk is full", by="full_disk_while_starting", ring=False, soak=True),
)

test_fault = case_for_each(FAULTS, usual="start_fails")


@contextlib.contextmanager
def starting(box):
    """A cluster that is not started yet, with no other cluster; the start fails."""
    box.close()
    cluster = box.new(n=2)
    try:
        with bounded():
            yield cluster
        assert cluster.state == "stopped"
        assert eventually(lambda: not ours())
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
    with bounded(), box.new(n=2) as cluster:
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
        warm.end()  # a start then takes seconds
        with starting(box) as cluster, later(delay, interrupt), pytest.raises(KeyboardInterrupt):
            cluster.start()
    with starting(box) as cluster:
        box.while_in("init_ring", "time.sleep(5)", interrupt)
        with pytest.raises(KeyboardInterrupt):
            cluster.start()


@pytest.mark.parametrize("module", [CONTROLLER, AGENT])
def test_an_interrupt_as_soon_as_a_process_was_started(module, box, monkeypatch):
    """It is ended, although nothing had noted it yet."""
    warm.end()
    usual = subprocess.Popen

    def started(command, **options):
        process = usual(command, **options)
        if module in command:
            interrupt()
        return process

    with starting(box) as cluster:
        monkeypatch.setattr(subprocess, "Popen", started)
        with pytest.raises(KeyboardInterrupt):
            cluster.start()
        assert cluster.message == "did not start: interrupted"
        assert eventually(lambda: not ours())


@pytest.mark.soak
@pytest.mark.parametrize("module", [CONTROLLER, AGENT])
def test_an_interrupt_as_soon_as_a_process_was_requested(module, box, monkeypatch):
    """The same of a process that the warm process forks."""
    box.close()
    with box.new(n=2):
        pass
    usual = socket.send_fds

    def requested(channel, buffers, descriptors):
        usual(channel, buffers, descriptors)
        if module.encode() in buffers[0]:
            interrupt()

    with starting(box) as cluster:
        monkeypatch.setattr(socket, "send_fds", requested)
        with pytest.raises(KeyboardInterrupt):
            cluster.start()
        assert cluster.message == "did not start: interrupted"
        assert eventually(lambda: not ours())


def full_disk_while_starting(box, tmp_path, monkeypatch):
    """The agent's own folder: a new rank reports it or works without, and later ones start."""
    box.close()
    with small_disk(tmp_path / "disk") as folder:
        monkeypatch.setenv("TMPDIR", str(folder))
        with box.new(n=2) as cluster:
            quiet(cluster, box.setup)
            assert list(folder.glob("workbench-rank-*"))
            full = fill(folder)
            told = "No space left on device"
            with bounded():
                try:
                    cluster.restart([1])
                except StartFailed as error:
                    told = str(error)
            assert "No space left on device" in told
            full.unlink()
            cluster.restart([1])
            assert quiet(cluster, box.ask).values == {0: (0, 2.0), 1: (None, 2.0)}


THIEF = """
import socket

taken = []

def steal(controller):
    for ports in controller.client_info, controller.engine_info:
        taken.append(socket.socket())
        taken[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, %d)
        try:
            taken[-1].bind(("127.0.0.1", ports["task"]))
            taken[-1].listen()
        except OSError:
            pass  # reserved

def change(module):
    usual = module.IPController.init_schedulers
    def init_schedulers(controller):  # ports are chosen, and none of these is bound
        steal(controller)
        usual(controller)
    module.IPController.init_schedulers = init_schedulers
"""
"""Takes ports of the controller, as another process can be given them."""


@pytest.fixture
def thief(tmp_path, monkeypatch):
    """Have a port of the controller taken while it starts, even if it is reserved."""

    def steal(*, reserved):
        hook = after_import("ipyparallel.controller.app", THIEF % reserved)
        (tmp_path / "sitecustomize.py").write_text(hook)
        path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
        monkeypatch.setenv("PYTHONPATH", path)

    return steal


def test_a_port_that_the_controller_will_use(box, thief):
    """No other process is given it."""
    box.close()
    thief(reserved=False)
    with bounded(), box.new(n=2) as cluster:
        assert quiet(cluster, "rank").values == {0: 0, 1: 1}


def test_a_port_of_the_controller_is_taken(box, thief):
    """What the controller wrote before it ended is shown, soon."""
    thief(reserved=True)
    with starting(box) as cluster, pytest.raises(StartFailed, match="Address already in use"):
        cluster.start()
