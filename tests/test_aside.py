"""Looking at a VM beside the agent's own work."""

import queue
import subprocess
import sys
import threading
import time

import pytest
from timers import within

from workbench.rank.aside import Aside
from workbench.wire.lines import LineReader, encode_line

WAIT_S = 20.0


class Gauge:
    """Something to look with: counts, says when it is closed, and hangs where it is told to."""

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
    """What is looked with."""
    return Gauge()


@pytest.fixture
def told():
    """What was answered."""
    return queue.SimpleQueue()


@pytest.fixture
def aside(gauge, told):
    """One that ends soon when nobody asks."""
    found = Aside(gauge, lambda *answer: told.put(answer), idle_s=0.2)
    yield found
    gauge.free.set()
    found.halt(WAIT_S)


def threads():
    """The threads that look."""
    return [thread for thread in threading.enumerate() if thread.name == "workbench-aside"]


def test_it_ends_when_nobody_asks_and_begins_anew(aside, gauge, told):
    """One look is kept open from question to question, then closed; another is made later."""
    aside.ask("a")
    aside.ask("b")
    assert [told.get(timeout=WAIT_S), told.get(timeout=WAIT_S)] == [
        ("a", {"answer": 1}),
        ("b", {"answer": 2}),
    ]
    assert within(WAIT_S, lambda: not threads())
    assert (gauge.made, gauge.closed) == (1, 1)
    aside.ask("c")
    assert told.get(timeout=WAIT_S) == ("c", {"answer": 3})
    assert gauge.made == 2


def test_what_fails_is_told(aside, gauge, told):
    """An error answers the question, and the next one is answered again."""
    gauge.count = 12
    aside.ask("bad")
    aside.ask("good")
    assert told.get(timeout=WAIT_S) == ("bad", {"error": "OSError: no such device"})
    assert told.get(timeout=WAIT_S) == ("good", {"answer": 14})


def test_no_thread_runs_while_it_is_halted(aside, gauge, told):
    """What is asked meanwhile is answered afterwards."""
    aside.ask("before")
    told.get(timeout=WAIT_S)
    aside.halt(WAIT_S)
    assert gauge.closed == 1
    aside.ask("meanwhile")
    assert not threads()
    aside.go_on()
    assert told.get(timeout=WAIT_S) == ("meanwhile", {"answer": 2})


def test_a_driver_that_hangs_is_not_waited_for(aside, gauge, told):
    """A halt gives up after its limit; what hung is answered when it comes back."""
    gauge.free.clear()
    aside.ask("stuck")
    aside.halt(0.05)
    aside.go_on()
    assert told.empty()
    gauge.free.set()
    assert told.get(timeout=WAIT_S) == ("stuck", {"answer": 1})


def test_an_agent_answers_with_samples_and_snapshots():
    """Over its own pipe, in whatever order they are ready; a second sample has rates."""
    with subprocess.Popen(
        [sys.executable, "-m", "workbench.rank.agent"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        reader, answers = LineReader(), {}

        def ask(kind, number):
            process.stdin.write(encode_line(kind, {"id": number}))
            process.stdin.flush()

        def wait_for(numbers):
            while not numbers <= set(answers):
                for _, content in reader.feed(process.stdout.readline()):
                    answers[content.get("id")] = content.get("answer")

        ask("snapshot", "s")
        ask("sample", 1)
        wait_for({"s", 1})
        assert answers["s"]["host"]["cpus"] >= 1
        assert answers[1]["cpu"]["percent"] == {"unknown": "needs two samples"}
        while "unknown" in str(answers[1]["cpu"]):
            time.sleep(0.1)
            ask("sample", 1)
            del answers[1]
            wait_for({1})
        assert 0 <= answers[1]["cpu"]["percent"] <= 100
        process.stdin.close()
        assert process.wait(WAIT_S) == 0
