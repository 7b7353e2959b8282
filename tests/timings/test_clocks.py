"""The ranks' clocks on the kernel's: the truth is injected, and always lies within the bound."""

import threading
import time

import numpy as np
import pytest
from timers import eventually

from workbench.rank.backends.backend import CellCollectives
from workbench.rank.backends.horovod import HorovodBackend
from workbench.rank.control import Control
from workbench.rank.interrupts import Interrupts
from workbench.rank.prompts import RankPrompts
from workbench.rank.recording.recorder import Recorder
from workbench.rank.sampler import LineSampler
from workbench.timings.cell_clocks import CellClocks
from workbench.timings.clocks import RingClocks
from workbench.wire import Inbox, Outbox
from workbench.wire.rank_messages import ClockPong

US, S = 1_000, 1_000_000_000
START = 5_000 * S


class Rank:
    """A rank whose clock is known: an offset of weeks, a drift, and what happens to it."""

    def __init__(self, seed=0, *, drift=30e-6, offset=3_000_000 * S, swing=0.0):
        self.random = np.random.default_rng(seed)
        self.drift, self.offset, self.swing = drift, offset, swing
        self.steps = []

    def clock(self, kernel):
        """What its clock shows at a moment of the kernel's, in nanoseconds."""
        since = kernel - START
        drifted = self.drift * since + self.swing * 100 * S * np.sin(since / (100 * S))
        stepped = sum(by for at, by in self.steps if kernel >= at)
        return kernel - self.offset + round(drifted) + stepped

    def delay(self, mean_us, load):
        heavy = self.random.exponential(5_000) if self.random.random() < load else 0
        return round((20 + self.random.exponential(mean_us) + heavy) * US)


def burst(clocks, rank, at, *, pings=16, there_us=20.0, back_us=20.0, load=0.0):
    """ClockPing it as the kernel does, with delays that differ by direction."""
    for _ in range(pings):
        there, back = rank.delay(there_us, load), rank.delay(back_us, load)
        clocks.add(0, at, rank.clock(at + there), at + there + back)
        at += 10_000 * US


def pinged(rank, seconds=300, **options):
    """Clocks that have known a rank for so long, bursts as in a cluster."""
    clocks = RingClocks()
    for second in [0, 1, 3, 7, *range(15, seconds + 1, 15)]:
        burst(clocks, rank, START + second * S, **options)
    return clocks


def errors(clocks, rank, begin=0, end=300):
    """Return how far moments of that time are off, and the largest bound given for them."""
    kernel = START + np.linspace(begin, end, 2_000).round(3) * S
    moments = [int(one) for one in kernel]
    found, uncertain = clocks.to_kernel(0, [rank.clock(one) for one in moments])
    return np.abs(found - np.array(moments)), uncertain


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("clock", "path"),
    [
        ({}, {}),
        ({"drift": -80e-6}, {}),
        ({}, {"back_us": 2_000.0}),
        ({}, {"load": 0.9}),
        ({"drift": 50e-6}, {"load": 1.0}),
        ({"swing": 5e-6}, {}),
        ({}, {"pings": 1, "load": 0.5}),
        ({"offset": -7 * S, "drift": 0.0}, {}),
    ],
    ids=["plain", "fast", "one-sided", "loaded", "always-loaded", "warming", "few", "same-host"],
)
def test_the_truth_is_within_the_uncertainty(seed, clock, path):
    """Whatever the drift and the delays, no moment is further off than its bound."""
    rank = Rank(seed, **clock)
    off, uncertain = errors(pinged(rank, **path), rank)
    assert (off <= uncertain).all()
    assert np.isfinite(uncertain).all()


def test_an_idle_network_gives_microseconds():
    """With round trips of 40 us and more, a moment is known to 50 us, and in truth better."""
    rank = Rank()
    off, uncertain = errors(pinged(rank), rank)
    assert uncertain.max() < 50 * US
    assert np.median(off) < 10 * US


def test_neighbours_narrow_the_result_of_a_loaded_burst():
    """One burst under load between quiet ones is hardly less certain than these."""
    rank = Rank()
    clocks = RingClocks()
    for second in range(0, 150, 15):
        burst(clocks, rank, START + second * S, load=1.0 if second == 75 else 0.0, pings=4)
    _, uncertain = errors(clocks, rank, 74, 76)
    assert uncertain.max() < 80 * US


def test_drift_is_reported_with_its_uncertainty():
    """The drift of a rank's clock is within its reported uncertainty."""
    told = pinged(Rank(drift=30e-6)).describe(0)
    assert abs(told["drift_ppm"] - -30) <= told["drift_uncertainty_ppm"] < 5
    assert told["round_trip_us"] <= told["loaded_round_trip_us"]
    assert told["steps"] == 0


def test_a_rank_that_never_answered_is_not_known():
    """Its times stay as they are, infinitely uncertain."""
    found, uncertain = RingClocks().to_kernel(3, [1, 2])
    assert found.tolist() == [1, 2]
    assert np.isinf(uncertain).all()
    assert RingClocks().describe(3) == {}


def test_before_the_second_burst_little_is_claimed():
    """After one burst the drift may be any that hosts have: the bound grows with the time."""
    rank = Rank(drift=200e-6)
    clocks = RingClocks()
    burst(clocks, rank, START)
    off, uncertain = errors(clocks, rank, 0, 60)
    assert (off <= uncertain).all()
    assert (np.diff(uncertain[100:]) > 0).all()


@pytest.mark.parametrize("by", [5 * S, -3 * S, 30_000_000])
def test_a_step_of_the_clock_is_seen(by):
    """Before and after a step the times are right; around it the bound includes both clocks."""
    rank = Rank()
    rank.steps = [(START + 100 * S, by)]
    clocks = pinged(rank)
    assert clocks.describe(0)["steps"] == 1
    for begin, end in ((0, 80), (120, 300)):
        off, uncertain = errors(clocks, rank, begin, end)
        assert (off <= uncertain).all()
        assert uncertain.max() < 50 * US
    off, uncertain = errors(clocks, rank, 91, 104)
    assert (off <= uncertain).all()


def test_a_stamp_that_is_wrong_is_passed_over():
    """A single answer from nowhere, or received before it was sent, changes nothing."""
    rank = Rank()
    clocks = pinged(rank, 150)
    now = START + 151 * S
    clocks.add(0, now, 12, now + 100 * US)
    clocks.add(0, now + 100, rank.clock(now), now)
    for second in (165, 180):
        burst(clocks, rank, START + second * S)
    assert clocks.describe(0)["steps"] == 0
    off, uncertain = errors(clocks, rank, 0, 180)
    assert (off <= uncertain).all()
    assert uncertain.max() < 50 * US


def test_a_drift_that_changes_at_once_is_followed():
    """NTP slews a clock from one second to the next: between bursts the bound is valid."""
    slow, quick = Rank(drift=0.0), Rank(drift=100e-6)
    turn = START + 150 * S

    class Slewed(Rank):
        def clock(self, kernel):
            return slow.clock(kernel) if kernel < turn else quick.clock(kernel) - 15_000 * US

    rank = Slewed()
    clocks = pinged(rank)
    off, uncertain = errors(clocks, rank, 0, 300)
    assert (off <= uncertain).all()
    assert np.median(uncertain) < 100 * US


def test_days_of_pings_take_bounded_memory():
    """After two days of bursts the first hour is still known, more coarsely."""
    rank = Rank()
    clocks = RingClocks()
    for second in range(0, 2 * 86_400, 15):
        burst(clocks, rank, START + second * S, pings=1)
    assert clocks.describe(0)["bursts"] <= 4096
    for begin, end in ((0, 3_600), (86_400, 86_500), (172_000, 172_700)):
        off, uncertain = errors(clocks, rank, begin, end)
        assert (off <= uncertain).all()


def test_each_cell_has_the_clocks_of_its_ring():
    """A rank's number goes to another process: earlier cells keep the clock of the one before."""
    first, second = Rank(offset=100 * S), Rank(offset=900 * S)
    clocks = CellClocks()
    clocks.begin_cell(1)
    burst(clocks.current, first, START)
    late = ClockPong(clocks.ping().ring, clocks.ping().sent_ns, 5)
    clocks.begin_ring()
    clocks.begin_cell(2)
    clocks.pong(0, late, START)
    assert clocks.current.ranks == []
    burst(clocks.current, second, START + 60 * S)
    moments = np.array([START + S, START + 61 * S])
    stamps = np.array([first.clock(int(moments[0])), second.clock(int(moments[1]))])
    found, uncertain = clocks.to_kernel(np.array([1, 2]), np.array([0, 0]), stamps)
    assert (np.abs(found - moments) <= uncertain).all()
    unknown = clocks.to_kernel(np.array([1, 7]), np.array([1, 0]), stamps)[1]
    assert np.isinf(unknown).all()


def test_a_rank_is_pinged_through_its_control_channel():
    """A rank's control thread answers; both ends being on this host, its offset is 0."""
    clocks, here = CellClocks(), threading.Event()

    def receive(rank, message):
        clocks.pong(rank, message, time.perf_counter_ns())
        here.set()

    def send(message):
        outbox.send(message)

    inbox = Inbox(receive)
    recorder = Recorder(lambda _: True, lambda _: None)
    backend = HorovodBackend(recorder, send)
    collectives = CellCollectives(backend, recorder)
    interrupts = Interrupts()
    answer = Control(
        send,
        recorder=recorder,
        collectives=collectives,
        interrupts=interrupts,
        backend=backend,
        sampler=LineSampler(recorder, send),
        prompts=RankPrompts(send, interrupts),
    )
    outbox = Outbox(inbox.address_for(0), answer.receive)
    outbox.send(ClockPong(-1, 0, 0))  # connected: what is sent before is dropped
    assert here.wait(60)
    clocks.start_pings(inbox.send_later, lambda: 1)
    eventually(lambda: clocks.current.ranks)
    clocks.stop_pings()
    outbox.close()
    inbox.close()
    now = time.perf_counter_ns()
    found, uncertain = clocks.current.to_kernel(0, now)
    assert abs(found - now) <= uncertain < S
