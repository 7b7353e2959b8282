"""One sampler for all listeners, whatever they and the hardware do."""

from __future__ import annotations

import json
import queue
import threading

import pytest
from fake_nvml import FakeNvml, h100
from timers import FAR_S

from workbench.resources.counters import Sampler
from workbench.server.feed import LiveFeed


class Ear:
    """A listener that keeps what it hears."""

    def __init__(self):
        self._heard = queue.Queue()

    def __call__(self, message):
        self._heard.put(json.loads(message.text(notebooks=True)))

    def next(self):
        return self._heard.get(timeout=60)


class CountingNvml(FakeNvml):
    """Knows how many users it had at once."""

    most = 0

    def nvmlInit(self):  # noqa: N802  # NVML's name
        super().nvmlInit()
        self.most = max(self.most, self.opened)


@pytest.fixture
def nvml():
    return CountingNvml(h100())


@pytest.fixture
def feed(machine, nvml):
    def make():
        # one test waits until this time has passed
        return Sampler(**machine.roots, nvml=nvml, time_limit_s=3)

    yield LiveFeed(make, interval_s=0.01)
    for thread in sampler_threads():
        thread.join(60)
    assert sampler_threads() == []


def sampler_threads():
    return [x for x in threading.enumerate() if x.name == "workbench-sampler"]


def test_a_sample_that_fails_does_not_end_the_feed(feed, machine, caplog):
    """A file of the kernel that cannot be understood costs samples, not the feed."""
    ear = Ear()
    leave = feed.subscribe(ear)
    ear.next()
    machine.write(machine.procfs / "stat", "cpu0 no numbers here at all, not one\n")
    while "could not be sampled" not in caplog.text:
        threading.Event().wait(0.01)
    machine.set_busy_ticks(0)
    before = ear.next()["time"]
    while ear.next()["time"] <= before:
        pass
    leave()


def test_a_sampler_that_cannot_be_made_is_made_again(machine, nvml, caplog):
    """An obstacle at the first sample costs messages, not the feed."""
    hindered = [OSError("no such machine yet"), OSError("nor now")]

    def make():
        if hindered:
            raise hindered.pop()
        return Sampler(**machine.roots, nvml=nvml, time_limit_s=FAR_S)

    ear = Ear()
    leave = LiveFeed(make, interval_s=0.01).subscribe(ear)
    assert ear.next()["gpus"][0]["utilization_percent"] == 37.0
    assert caplog.text.count("the sampler did not start") == 2
    leave()


def test_a_listener_whose_loop_is_closed_is_dropped(feed):
    """A listener that can no longer be called is removed; the others continue."""
    told = []

    def closed(message):
        told.append(message)
        raise RuntimeError("Event loop is closed")

    ear = Ear()
    leave = feed.subscribe(ear)
    ear.next()
    feed.subscribe(closed)
    for _ in range(5):
        ear.next()
    assert len(told) == 1
    leave()


def test_never_two_samplers(feed, nvml):
    """Who comes while the last sampler still ends waits for it: NVML has one user at a time."""
    for _ in range(20):
        ear = Ear()
        leave = feed.subscribe(ear)
        ear.next()
        leave()
        leave()  # twice is once
    for thread in sampler_threads():
        thread.join(60)
    assert nvml.inits > 1
    assert nvml.most == 1
    assert nvml.opened == 0


def test_a_hanging_driver_leaves_the_rest_moving(feed, nvml):
    """While NVML hangs, messages come with everything else in them."""
    ear = Ear()
    leave = feed.subscribe(ear)
    assert ear.next()["gpus"][0]["utilization_percent"] == 37.0
    nvml.answers.clear()
    try:
        message = ear.next()
        while message["gpus"][0]["utilization_percent"] == 37.0:
            message = ear.next()
    finally:
        nvml.answers.set()
    assert "unknown" in message["gpus"][0]["utilization_percent"]
    assert message["memory"]["total_bytes"] == 65_536_000 * 1024
    leave()
