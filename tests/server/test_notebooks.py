"""Kernels' notebooks: one question for all listeners, whatever the session manager does."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from timers import InThread, eventually

from workbench.server.feed import LiveFeed, Notebooks

from .samplers import ScriptedSampler, process


class Sessions:
    """A session manager of a few sessions, which counts how often it is asked."""

    def __init__(self, **paths):
        self.paths = paths
        self.asked = 0
        self.answers = threading.Event()
        self.answers.set()
        self.fails = False

    async def list_sessions(self):
        self.asked += 1
        while not self.answers.is_set():
            await asyncio.sleep(0.01)
        if self.fails:
            raise TimeoutError("the gateway did not answer")
        return [
            {"id": f"session-{kernel}", "type": "notebook", "path": path, "kernel": {"id": kernel}}
            for kernel, path in self.paths.items()
        ]


@pytest.fixture
def loop():
    """A server's event loop, in a thread."""
    loop = asyncio.new_event_loop()
    thread = InThread(loop.run_forever)
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    for task in asyncio.all_tasks(loop):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)
    loop.close()


@pytest.fixture
def sessions():
    return Sessions(k1="a.ipynb", k2="b.ipynb")


@pytest.fixture
def notebooks(sessions, loop):
    known = Notebooks(sessions)
    known.use(loop)
    return known


@pytest.fixture
def feed(notebooks):
    """Samples of a machine with two kernels and a stranger."""
    told = {"processes": [process(1, "k1"), process(2, "elsewhere"), process(3)]}
    yield LiveFeed(lambda: ScriptedSampler(told), interval_s=0.05, notebooks=notebooks.paths)
    assert eventually(lambda: "workbench-sampler" not in [x.name for x in threading.enumerate()])


def told(message, *, notebooks=True):
    return [one["notebook"] for one in json.loads(message.text(notebooks=notebooks))["processes"]]


def test_one_question_for_all_listeners(feed, sessions):
    """However many there are."""
    heard = [[] for _ in range(20)]
    leave = [feed.subscribe(ear.append) for ear in heard]
    assert eventually(lambda: all(len(ear) >= 3 for ear in heard))
    for one in leave:
        one()
    assert sessions.asked <= len(heard[0]) + 1
    assert told(heard[-1][-1]) == ["a.ipynb", None, None]
    assert told(heard[-1][-1], notebooks=False) == [None, None, None]


def test_no_kernel_no_question(sessions, notebooks):
    """If no kernel runs here, the session manager is not called."""
    heard = []
    feed = LiveFeed(
        lambda: ScriptedSampler({"processes": [process(3)]}),
        interval_s=0.02,
        notebooks=notebooks.paths,
    )
    leave = feed.subscribe(heard.append)
    assert eventually(lambda: len(heard) > 3)
    leave()
    assert sessions.asked == 0
    assert told(heard[-1]) == [None]


@pytest.mark.parametrize("processes", [{"unknown": "no /proc"}, []])
def test_processes_that_are_not_known(notebooks, processes):
    """They are reported unchanged."""
    heard = []
    feed = LiveFeed(lambda: ScriptedSampler({"processes": processes}), notebooks=notebooks.paths)
    leave = feed.subscribe(heard.append)
    assert eventually(lambda: heard)
    leave()
    assert json.loads(heard[0].text(notebooks=True))["processes"] == processes


def test_a_session_manager_that_hangs(feed, sessions):
    """Samples continue with what was known; it is requested once, and read when it comes back."""
    heard = []
    leave = feed.subscribe(heard.append)
    assert eventually(lambda: heard and told(heard[-1])[0] == "a.ipynb")
    sessions.answers.clear()
    asked, had = sessions.asked, len(heard)
    assert eventually(lambda: len(heard) >= had + 4)
    assert sessions.asked <= asked + 1
    assert told(heard[-1])[0] == "a.ipynb"
    sessions.paths["k1"] = "renamed.ipynb"
    sessions.answers.set()
    assert eventually(lambda: told(heard[-1])[0] == "renamed.ipynb")
    leave()


def test_a_session_manager_that_fails(feed, sessions, caplog):
    """No path is reported that may be wrong by now; it is requested again."""
    heard = []
    leave = feed.subscribe(heard.append)
    assert eventually(lambda: heard and told(heard[-1])[0] == "a.ipynb")
    sessions.fails = True
    assert eventually(lambda: told(heard[-1])[0] is None)
    had = len(heard)
    assert eventually(lambda: len(heard) > had + 3)
    assert caplog.text.count("cannot list the notebooks") == 1  # and not once a second
    assert "the gateway did not answer" in caplog.text
    sessions.fails = False
    assert eventually(lambda: told(heard[-1])[0] == "a.ipynb")
    leave()


def test_without_an_event_loop(sessions):
    """Before the first client there is none, and after the server's end none runs."""
    assert Notebooks(sessions).paths() == {}
    over = asyncio.new_event_loop()
    over.close()
    known = Notebooks(sessions)
    known.use(over)
    assert known.paths() == {}
    assert sessions.asked == 0
