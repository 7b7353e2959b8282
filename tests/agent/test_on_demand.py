"""Snapshots and samples in threads of the agent."""

import queue
import threading
import time

import pytest
from agents import bare_agents
from timers import FAR_S, within

from workbench.agent.on_demand import OnDemandWorker
from workbench.wire.agent_messages import Ask, End

WAIT_S = FAR_S


class Gauge:
    """A source that counts, notes when it is closed, and hangs when the test says so."""

    def __init__(self):
        self.made = self.closed = self.count = 0
        self.free = threading.Event()
        self.free.set()

    def __call__(self):
        self.made += 1
        return self

    def take(self):
        self.count += 1
        self.free.wait(WAIT_S)
        if self.count == 13:
            raise OSError("no such device")
        return self.count

    def close(self):
        self.closed += 1


@pytest.fixture
def gauge():
    """The source of answers."""
    return Gauge()


@pytest.fixture
def answers():
    """Return the answer."""
    return queue.SimpleQueue()


@pytest.fixture
def worker(gauge, answers):
    """One that ends soon when nobody asks."""
    found = OnDemandWorker(gauge, lambda *answer: answers.put(answer), idle_s=0.2)
    yield found
    gauge.free.set()
    found.pause(WAIT_S)


def threads():
    """The threads of workers."""
    return [thread for thread in threading.enumerate() if thread.name == "workbench-on-demand"]


def test_it_ends_when_nobody_asks_and_begins_again(worker, gauge, answers):
    """One source is kept open from question to question, then closed; another is made later."""
    worker.ask("a")
    worker.ask("b")
    assert [answers.get(timeout=WAIT_S), answers.get(timeout=WAIT_S)] == [
        ("a", {"answer": 1}),
        ("b", {"answer": 2}),
    ]
    assert within(WAIT_S, lambda: not threads())
    assert (gauge.made, gauge.closed) == (1, 1)
    worker.ask("c")
    assert answers.get(timeout=WAIT_S) == ("c", {"answer": 3})
    assert gauge.made == 2


def test_a_failure_is_reported(worker, gauge, answers):
    """An error answers the question, and the next one is answered again."""
    gauge.count = 12
    worker.ask("bad")
    worker.ask("good")
    assert answers.get(timeout=WAIT_S) == ("bad", {"error": "OSError: no such device"})
    assert answers.get(timeout=WAIT_S) == ("good", {"answer": 14})


def test_no_thread_runs_while_it_is_paused(worker, gauge, answers):
    """A question that arrives meanwhile is answered afterwards."""
    worker.ask("before")
    answers.get(timeout=WAIT_S)
    worker.pause(WAIT_S)
    assert gauge.closed == 1
    worker.ask("meanwhile")
    assert not threads()
    worker.resume()
    assert answers.get(timeout=WAIT_S) == ("meanwhile", {"answer": 2})


def test_a_driver_that_hangs_is_not_waited_for(worker, gauge, answers):
    """A pause gives up after its limit; what hung is answered when it comes back."""
    gauge.free.clear()
    worker.ask("stuck")
    worker.pause(0.05)
    worker.resume()
    assert answers.empty()
    gauge.free.set()
    assert answers.get(timeout=WAIT_S) == ("stuck", {"answer": 1})


def test_an_agent_answers_with_samples_and_snapshots():
    """In whatever order they are ready; a second sample has rates."""
    with bare_agents() as start:
        agent = start()
        agent.send(Ask("s", "snapshot"))
        first = agent.ask("1", "sample").answer
        assert first["cpu"]["percent"] == {"unknown": "needs two samples"}
        assert agent.ask("t", "snapshot").answer["host"]["cpus"] >= 1
        sample, number = first, 2
        while "unknown" in str(sample["cpu"]):
            time.sleep(0.1)
            sample = agent.ask(str(number), "sample").answer
            number += 1
        assert 0 <= sample["cpu"]["percent"] <= 100
        agent.send(End())
        assert agent.process.wait(WAIT_S) == 0
