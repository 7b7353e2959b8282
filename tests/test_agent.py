"""The agent of a VM as a process: what it answers, and when it ends."""

import contextlib
import subprocess
import sys

import pytest
from disks import fill, small_disk

from workbench.rank.children import log_tail
from workbench.resources.host.identity import machine_identity
from workbench.vms import vms, why_not
from workbench.wire.lines import LineReader, encode_line


class Agent:
    """An agent as a kernel has it: orders to it, and what it reports."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "workbench.rank.agent"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._reader = LineReader()

    def order(self, kind, **content):
        self.process.stdin.write(encode_line(kind, content))
        self.process.stdin.flush()

    def report(self, kind):
        """Wait for a report of a kind, and return what it says."""
        while line := self.process.stdout.readline():
            for found, content in self._reader.feed(line):
                if found == kind:
                    return content
        pytest.fail(f"the agent ended without a report of {kind}")


def test_an_empty_log_on_a_full_disk_says_so(tmp_path):
    """What a rank wrote before it ended is lost there: its end would have no cause."""
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
    with contextlib.ExitStack() as stack:

        def one():
            agent = Agent()
            stack.enter_context(agent.process)
            stack.callback(agent.process.kill)
            return agent

        yield one


def test_an_agent_that_hears_nothing_ends(start):
    """An agent whose link is dead, though still open, ends by itself."""
    agent = start()
    agent.order("load", slots=1, environment={}, silence_s=0.5)
    assert agent.process.wait(30) == 0


def test_a_question_that_cannot_be_answered(start):
    """It is answered with what went wrong, and the agent goes on."""
    agent = start()
    agent.order("route", id=7, of={"nonsense": 1})
    told = agent.report("route")
    assert told["id"] == 7
    assert "nonsense" in told["error"]
    agent.order("ping")
    assert agent.report("pong") == {}


def test_one_agent_ends_another(start):
    """An agent ends the lost one before it; not a process that has got its number since."""
    old, new = start(), start()
    hello = old.report("hello")
    pid, began = hello["pid"], hello["began"]
    new.order("retire", id=1, of={"pid": pid, "began": began - 100})
    assert "error" not in new.report("retire")
    assert old.process.poll() is None
    new.order("retire", id=2, of={"pid": pid, "began": began})
    assert "error" not in new.report("retire")
    assert old.process.wait(5) == 0


def test_which_machine_it_is_on(start):
    """Two processes of one machine agree; one that has a host name of its own is elsewhere."""
    told = start().report("facts")["machine"]
    assert told == machine_identity()
    code = "from workbench.resources.host import identity; print(identity.machine_identity())"
    if why_not() is None:
        with vms(1) as machines:
            done = machines.run("vm1", [sys.executable, "-c", code])
        assert done.stdout.strip() != told
        assert done.stdout.split()[0] == told.split()[0]
