"""The live view says by how much its figures are behind the ranks."""

import itertools
import time
from types import SimpleNamespace

import pytest
from recorded_training import record
from timers import eventually

from workbench.timings import Timings
from workbench.widgets.cluster_source import ClusterSource
from workbench.wire import Outbox
from workbench.wire.rank_messages import Records

IDLE = {"state": "ready", "profiling": SimpleNamespace(state="none", latest=None)}


@pytest.fixture
def view():
    """Timings of a rank on this machine, its outbox, and the message of their view."""
    timings = Timings(one_clock=True)
    timings.listen()
    timings.begin_cell(1)
    outbox = Outbox(timings.address_for(0))
    ranks = [SimpleNamespace(rank=0, vm="vm1")]
    cluster = SimpleNamespace(timings=timings, ranks=ranks, n=1, fabric=None, **IDLE)
    source = ClusterSource(cluster)
    yield SimpleNamespace(timings=timings, outbox=outbox, read=lambda: source.status().message)
    outbox.close()
    timings.close()


def send(view, index, ago_s):
    """A rank sends iterations until one arrives within a second; it ended some seconds ago.

    Return the index of the next iteration.
    """
    indices = itertools.count(index)

    def arrived():
        newest = next(indices)
        one = record(newest)
        one.start_ns = time.perf_counter_ns() - round(ago_s * 1e9) - one.duration_ns
        view.outbox.send(Records((one.pack(),)))
        assert eventually(lambda: len(view.timings) == newest + 1)
        return abs(view.timings.lag_s - ago_s) < 0.9

    assert eventually(arrived)
    return next(indices)


@pytest.mark.parametrize(
    ("ago_s", "text"),
    [
        (0.01, "Training."),
        (3.5, "Training. The figures are more than 2 s behind the ranks."),
        (70.0, "Training. The figures are more than 60 s behind the ranks."),
    ],
)
def test_the_view_says_how_far_it_is_behind(view, ago_s, text):
    """Nothing up to a second; then in steps, so that the message does not change all the time."""
    send(view, 0, ago_s)
    assert view.read() == text


def test_the_message_goes_when_the_kernel_has_caught_up(view):
    """It is about the newest record."""
    following = send(view, 0, 30.5)
    assert "more than 20 s behind" in view.read()
    send(view, following, 0.01)
    assert view.read() == "Training."


def test_without_clocks_nothing_is_said():
    """The times of a rank whose clock is unknown cannot be compared with the kernel's."""
    timings = Timings()
    timings.listen()
    outbox = Outbox(timings.address_for(0))
    try:
        timings.begin_cell(1)
        outbox.send(Records((record(0).pack(),)))
        assert eventually(lambda: len(timings) == 1)
        assert not timings.lag_s >= 0
        now = time.perf_counter_ns()
        timings.clocks.current.add(0, now - 1000, now, now + 1000)
        later = record(1)
        later.start_ns = now - later.duration_ns - 5_000_000_000
        outbox.send(Records((later.pack(),)))
        assert eventually(lambda: timings.lag_s >= 5)
    finally:
        outbox.close()
        timings.close()
