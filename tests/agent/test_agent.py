"""The agent of a VM as a process: what it answers, and when it ends."""

import contextlib
import sys
import time

import psutil
import pytest
from agents import bare_agents
from disks import fill, small_disk
from timers import eventually
from vm_sets import vms

from workbench.agent.rank_processes import log_tail
from workbench.resources.host.machine import machine_identity
from workbench.testbed import why_not
from workbench.wire.agent_messages import (
    Exited,
    Facts,
    Hello,
    Load,
    Loaded,
    MessageReader,
    Ping,
    Pong,
    Replaced,
    Started,
    StartRank,
    encode,
)
from workbench.wire.detached import connect_agent


def test_an_empty_log_on_a_full_disk_says_so(tmp_path):
    """Text that a rank wrote before it ended is lost there: its end would have no cause."""
    with small_disk(tmp_path / "disk") as disk:
        log = disk / "ranks" / "rank-0.log"
        log.parent.mkdir()
        log.touch()
        assert log_tail(log) == ""
        fill(disk)
        assert f"{disk} has no space left" in log_tail(log)


@pytest.fixture
def start():
    """Start agents, which end with the test."""
    with bare_agents() as one:
        yield one


def test_an_agent_that_hears_nothing_ends(start):
    """An agent whose connection is dead, though still open, ends after its grace period."""
    agent = start(grace_s=0.5, silence_s=0.5)
    assert agent.process.wait(60) == 0
    assert not agent.folder.exists()


@pytest.mark.soak
def test_an_agent_without_a_kernel_ends(start):
    """Its grace period begins when the kernel leaves; one that comes back in time keeps it."""
    agent = start(grace_s=5.0)
    agent.report(Facts)
    agent.socket.close()
    time.sleep(0.2)
    agent.attach("a")
    agent.report(Facts)
    time.sleep(5.5)
    assert agent.process.poll() is None
    agent.socket.close()
    assert agent.process.wait(60) == 0
    assert not agent.folder.exists()


def test_a_question_that_cannot_be_answered(start):
    """The answer has the reason, and the agent continues."""
    agent = start()
    answer = agent.ask("7", "route", nonsense=1)
    assert "nonsense" in answer.error
    assert "no such question" in agent.ask("8", "what is love").error
    agent.send(Ping())
    assert agent.report(Pong) == Pong(2)


def test_a_kernel_that_attaches_gets_the_complete_state(start):
    """It includes what happened without a kernel; the previous kernel is notified."""
    agent = start()
    agent.send(Load(1, "horovod"))
    agent.send(StartRank(0, "first", {"broken": True}, {}, []))
    started = agent.report(Started)
    agent.socket.close()
    assert eventually(lambda: not psutil.pid_exists(started.pid))
    agent.attach("a")
    assert agent.report(Hello).received == 2
    assert agent.report(Facts).cores
    assert agent.report(Loaded).versions["torch"]
    assert agent.report(Started) == started
    assert agent.report(Exited).pid == started.pid
    before = agent.socket
    agent.attach("b")
    assert agent.report(Hello).received == 0
    with before:
        (message,) = MessageReader().feed(before.recv(1 << 16))
        assert message == Replaced()
        assert before.recv(1) == b""


@pytest.mark.parametrize("sent", [b"", b"garbage\n", bytes(range(256)) * 300, encode(Ping())])
def test_a_connection_that_does_not_attach_leaves_the_agent_to_its_kernel(start, sent):
    """Whatever it sends, and however many there are; a kernel can still attach afterwards."""
    agent = start()
    agent.report(Facts)
    others = []
    for _ in range(40):
        others.append(connect_agent(agent.folder))
        with contextlib.suppress(OSError):
            others[-1].sendall(sent)
    assert agent.ask("1", "clock").error is None
    for other in others:
        other.close()
    agent.attach("b")
    assert agent.report(Hello).received == 0


def test_one_agent_ends_another(start):
    """An agent ends the lost one before it; not a process that has got its number since."""
    old, new = start(), start()
    hello = old.report(Hello)
    assert new.ask("1", "retire", pid=hello.pid, began=hello.began - 100).error is None
    assert old.process.poll() is None
    assert new.ask("2", "retire", pid=hello.pid, began=hello.began).error is None
    assert old.process.wait(60) == 0


def test_which_machine_it_is_on(start):
    """Two processes of one machine agree; one that has a host name of its own is elsewhere."""
    told = start().report(Facts).machine
    assert told == machine_identity()
    code = (
        "from workbench.resources.host.machine import machine_identity; print(machine_identity())"
    )
    if why_not() is None:
        with vms(1) as machines:
            done = machines.run("vm1", [sys.executable, "-c", code])
        assert done.stdout.strip() != told
        assert done.stdout.split()[0] == told.split()[0]


def test_a_folder_that_is_open_to_others_is_not_used(start):
    """Whoever could put a socket there could give orders in the kernel's place."""
    agent = start()
    agent.folder.chmod(0o755)
    with pytest.raises(PermissionError, match="not a folder of this user alone"):
        connect_agent(agent.folder)
