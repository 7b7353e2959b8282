"""Late ranks in a run of cells that train different things: which rank, when, by how much."""

from array import array
from types import SimpleNamespace

import numpy as np
import pytest
from recorded import MS, layout_of
from timers import FAR_S

from workbench.timings import Timings
from workbench.widgets.cluster_source import ClusterSource
from workbench.wire import Flag, IterationRecord, Outbox
from workbench.wire.rank_messages import Records

SHARES = {"data": 0.05, "forward": 0.3, "backward": 0.45, "optimizer": 0.08, "other": 0.02}
"""The phases as shares of an iteration, without communication."""
TRANSFER_MS = 2
"""The same in each cell, for the same bytes: otherwise a link would be slow."""
FIRST_TIMES = 3
"""The first iteration of a cell computes so many times as long."""


class Ranks:
    """Ranks that train by formula and send records to a kernel's timings over real channels.

    All ranks wait for the last one before they go on. Each phase varies by `noise` of itself.
    """

    def __init__(self, ranks=2, noise=0.02, seed=0):
        self.random, self.noise = np.random.default_rng(seed), noise
        self.now_ms = np.zeros(ranks)
        self.timings, self.cells, self.begins = Timings(), 0, [0]
        self.timings.listen()
        self.outboxes = [Outbox(self.timings.address_for(rank)) for rank in range(ranks)]

    def train(self, n, iteration_ms, late=None, when=None, transfer_ms=TRANSFER_MS):
        """Run a cell of n iterations; in those of `when`, `late` has {rank: (phase, ms)}."""
        self.train_in_turn(
            {"n": n, "ms": iteration_ms, "late": late, "when": when}, transfer_ms=transfer_ms
        )

    def train_in_turn(self, *trainings, transfer_ms=TRANSFER_MS):
        """Run one cell with several trainings, each of its own model size and batches."""
        self.cells += 1
        self.timings.begin_cell(self.cells)
        self.now_ms[:] = self.now_ms.max() + 5
        records, index = [[] for _ in self.outboxes], 0
        for training in trainings:
            for own in range(training["n"]):
                self.iterate(index, own, records, transfer_ms, **training)
                index += 1
        for outbox, own in zip(self.outboxes, records, strict=True):
            outbox.send(layout_of(len(self.outboxes)))
            outbox.send(Records(tuple(own)))
        counts = dict.fromkeys(range(len(self.outboxes)), index)
        assert self.timings.end_cell(self.cells, counts, timeout_s=FAR_S)
        self.begins.append(self.begins[-1] + index)

    def iterate(self, index, own, records, transfer_ms, *, n, ms, late=None, when=None, size=1):
        """Add an iteration of each rank to `records`."""
        del n
        phases = self.phases_ms(ms)
        if index == 0:
            phases["forward"] *= FIRST_TIMES
        for rank, (phase, late_ms) in (late or {}).items():
            phases[phase][rank] += late_ms if when is None or own in when else 0
        ready = self.now_ms + phases["data"] + phases["forward"] + phases["backward"]
        end = ready.max() + transfer_ms
        for rank, mine in enumerate(records):
            mine.append(self.record(rank, index, phases, ready[rank], end, size))
        self.now_ms = end + phases["optimizer"] + phases["other"]

    def phases_ms(self, iteration_ms):
        """How long each rank takes for each phase."""
        size = len(self.outboxes)
        return {
            phase: iteration_ms * share * (1 + self.noise * self.random.standard_normal(size))
            for phase, share in SHARES.items()
        }

    def record(self, rank, index, phases, ready_ms, end_ms, size=1):
        """A packed record of an iteration with three collectives, which end together."""
        spent = {f"{phase}_ns": round(every[rank] * MS) for phase, every in phases.items()}
        spent |= {"copy_ns": 0, "exposed_ns": round((end_ms - ready_ms) * MS)}
        start = self.now_ms[rank]
        submitted, ended = (
            array("I", [round((at - start) * 1e4)] * 3) for at in (ready_ms, end_ms)
        )
        return IterationRecord(
            self.cells, index, round(start * MS), sum(spent.values()), **spent,
            communication_ns=spent["exposed_ns"], overlapped_ns=0,
            size_bytes=4_404_000 * size, tensors=3, world_size=len(self.outboxes), layout=0,
            flags=Flag.FIRST_OF_CELL if index == 0 else Flag.NONE,
            submitted=submitted, responded=submitted, began=submitted, ended=ended, finished=ended,
        ).pack()  # fmt: skip

    def close(self):
        for outbox in self.outboxes:
            outbox.close()
        self.timings.close()


@pytest.fixture(params=[0, 1])
def ranks(request):
    """Two ranks."""
    opened = Ranks(seed=request.param)
    yield opened
    opened.close()


def named(ranks):
    """Rank, phase, first and last iteration, and excess in ms of each straggler."""
    found = ranks.timings.stragglers()
    return [
        (one.rank, one.phase, one.first_iteration, one.last_iteration, round(one.excess_us / 1e3))
        for one in found.itertuples()
    ]


@pytest.mark.parametrize("long", [60, 400])
def test_a_short_cell_counts_next_to_one_of_long_iterations(ranks, long):
    """10 ms are half of an iteration of 20 ms, and nothing in one of 500 ms."""
    ranks.train(20, 20, late={1: ("data", 10)})
    ranks.train(long, 500)
    assert named(ranks) == [(1, "data", 0, 19, 10)]
    found = ranks.timings.stragglers().iloc[0]
    assert found["how_often"] == "from 0 to 19"
    assert found["late_us"] == pytest.approx(10_000, rel=0.1)
    assert ranks.timings.summary().slowest_rank is None


def test_the_order_of_the_cells_does_not_matter(ranks):
    """The short iterations after the long ones."""
    ranks.train(60, 500)
    ranks.train(20, 20, late={1: ("data", 10)})
    assert named(ranks) == [(1, "data", 60, 79, 10)]


def test_what_is_noise_in_long_iterations_is_named_in_short_ones():
    """Long iterations vary by more than the whole delay."""
    ranks = Ranks(noise=0.2)
    ranks.train(200, 500)
    ranks.train(40, 20, late={0: ("backward", 15)})
    ranks.train(200, 500)
    ((rank, phase, first, last, excess_ms),) = named(ranks)
    ranks.close()
    assert (rank, phase, first, last) == (0, "backward", 200, 239)
    assert excess_ms == pytest.approx(15, abs=2)


def test_short_iterations_do_not_make_noise_of_long_ones_a_delay():
    """5% of a short iteration is nothing in a long one, in any phase."""
    ranks = Ranks(noise=0.02)
    ranks.train(400, 10)
    ranks.train(30, 2_000)
    found = named(ranks)
    ranks.close()
    assert found == []


def test_each_cell_may_have_another_late_rank(ranks):
    """Spans end where their cell ends, even if iterations take equally long."""
    ranks.train(40, 20, late={1: ("data", 10)})
    ranks.train(40, 20, late={0: ("data", 10)})
    ranks.train(40, 20)
    ranks.train(40, 500, late={0: ("forward", 200)})
    ranks.train(40, 100, late={1: ("optimizer", 50)})
    assert named(ranks) == [
        (1, "data", 0, 39, 10),
        (0, "data", 40, 79, 10),
        (0, "forward", 120, 159, pytest.approx(200, abs=4)),
        (1, "optimizer", 160, 199, 50),
    ]


def test_short_cells_in_turn_are_distinguished(ranks):
    """Every second of twelve cells has a late rank, for ten iterations each."""
    for _ in range(6):
        ranks.train(10, 20, late={1: ("data", 10)})
        ranks.train(10, 30)
    assert named(ranks) == [(1, "data", at, at + 9, 10) for at in range(0, 120, 20)]
    assert ranks.timings.summary().slowest_rank is None


def test_a_rank_that_is_late_in_every_cell_is_always_late(ranks):
    """By 10 ms in one and by 250 ms in another: two spans, and one slowest rank."""
    ranks.train(40, 20, late={1: ("data", 10)})
    ranks.train(40, 500, late={1: ("data", 250)})
    assert named(ranks) == [(1, "data", 0, 39, 10), (1, "data", 40, 79, pytest.approx(250, abs=2))]
    summary = ranks.timings.summary()
    assert summary.slowest_rank == 1
    assert summary.slowest_excess_us == pytest.approx(130_000, rel=0.05)


def test_a_cell_that_is_run_again_continues_the_span(ranks):
    """The same delay in three cells, one after a short check, is one straggler."""
    for _ in range(3):
        ranks.train(30, 20, late={1: ("data", 10)})
    ranks.train(2, 20)
    ranks.train(30, 20, late={1: ("data", 10)})
    assert named(ranks) == [(1, "data", 0, 121, 10)]
    assert ranks.timings.stragglers()["how_often"].tolist() == ["always"]


@pytest.mark.parametrize("n", [1, 3])
def test_cells_of_few_iterations_are_seen_together(ranks, n):
    """Somebody who trains step by step, one cell for each."""
    for _ in range(20):
        ranks.train(n, 20, late={1: ("data", 10)})
    assert named(ranks) == [(1, "data", 0, 20 * n - 1, 10)]
    assert ranks.timings.summary().slowest_rank == 1


def test_a_span_within_a_cell_keeps_its_ends(ranks):
    """From the 50th to the 69th iteration of the second cell."""
    ranks.train(60, 500)
    ranks.train(100, 20, late={0: ("forward", 8)}, when=range(50, 70))
    ranks.train(60, 200)
    assert named(ranks) == [(0, "forward", 110, 129, 8)]


def test_a_single_pause_counts_in_short_iterations(ranks):
    """300 ms are many iterations of the first cell, and less than one of the second."""
    ranks.train(60, 20, late={1: ("data", 300)}, when=[30])
    ranks.train(100, 500)
    assert named(ranks) == [(1, "data", 30, 30, 300)]


def test_one_of_many_ranks(ranks):
    """The others are compared with their median, in each cell."""
    many = Ranks(ranks=5)
    many.train(30, 20, late={3: ("backward", 6)})
    many.train(30, 300, late={0: ("backward", 90)})
    found = named(many)
    many.close()
    assert found == [
        (3, "backward", 0, 29, 6),
        (0, "backward", 30, 59, pytest.approx(90, abs=3)),
    ]


def test_the_live_view_shows_where_a_span_began(ranks):
    """A rank that was late in one cell by 10 ms and is in the next by 250 ms: two spans."""
    cluster = SimpleNamespace(timings=ranks.timings, ranks=[], n=2, fabric=None)
    source = ClusterSource(cluster)
    ranks.train(40, 20, late={1: ("data", 10)})
    assert [one.first_iteration for one in source.details().stragglers] == [0]
    ranks.train(20, 500, late={1: ("data", 250)})
    assert [one.first_iteration for one in source.details().stragglers] == [40, 0]


def test_a_slow_link_counts_by_the_iterations_of_its_cell(ranks):
    """10 ms more for the same bytes are much in iterations of 20 ms, and little in 500 ms."""
    ranks.train(60, 20)
    ranks.train(60, 500, transfer_ms=TRANSFER_MS + 10)
    assert named(ranks) == []
    ranks.train(60, 20, transfer_ms=TRANSFER_MS + 10)
    assert named(ranks) == [(-1, "communication", 121, 179, 10)]


@pytest.mark.parametrize("length", [3, 5, 6])
def test_a_rank_that_is_late_in_many_short_cells(ranks, length):
    """It is the slowest rank of the summary too, which leaves out warming up."""
    for _ in range(20):
        ranks.train(length, 20, late={1: ("data", 8)})
    summary = ranks.timings.summary()
    assert summary.slowest_rank == 1
    assert summary.slowest_excess_us == pytest.approx(8_000, rel=0.15)
    assert {found[0] for found in named(ranks)} == {1}


@pytest.mark.parametrize("lengths", [[5] * 12, [6] * 10, [60, 3, 60], [20, 4, 20]])
def test_one_late_iteration_of_a_short_cell(ranks, lengths):
    """It is found among those of neighbouring cells, which train the same."""
    short = len(lengths) // 2
    for number, length in enumerate(lengths):
        late = {1: ("data", 150)} if number == short else None
        ranks.train(length, 20, late=late, when={1})
    place = sum(lengths[:short]) + 1
    assert named(ranks) == [(1, "data", place, place, pytest.approx(150, abs=5))]


@pytest.mark.parametrize(("last", "first"), [(4, 4), (3, 4), (2, 6), (7, 3)])
def test_a_rank_that_is_late_across_the_border_of_two_cells(ranks, last, first):
    """Its last iterations of one cell and its first of the next are one span."""
    ranks.train(40, 20)
    ranks.train(40, 20, late={1: ("data", 10)}, when=range(40 - last, 40))
    ranks.train(40, 20, late={1: ("data", 10)}, when=range(first))
    ranks.train(40, 20)
    assert named(ranks) == [(1, "data", 80 - last, 80 + first - 1, 10)]


def test_the_end_of_one_training_and_the_begin_of_another(ranks):
    """Of different trainings, four late iterations each are no span."""
    ranks.train(40, 20, late={1: ("data", 10)}, when=range(36, 40))
    ranks.train(40, 100, late={1: ("data", 10)}, when=range(4))
    assert named(ranks) == []


def test_a_cell_that_trains_one_model_after_another(ranks):
    """10 ms are half of an iteration of the first, and nothing in one of the second."""
    late = {1: ("data", 10)}
    ranks.train_in_turn({"n": 20, "ms": 20, "late": late}, {"n": 60, "ms": 500, "size": 50})
    assert named(ranks) == [(1, "data", 0, 19, 10)]
    ranks.train_in_turn({"n": 60, "ms": 500, "size": 50}, {"n": 20, "ms": 20, "late": late})
    assert named(ranks) == [(1, "data", 0, 19, 10), (1, "data", 140, 159, 10)]


@pytest.mark.parametrize("factor", [2, 4, 25])
def test_a_cell_that_goes_on_with_other_batches(ranks, factor):
    """The same model, so the same gradients; iterations take several times as long."""
    late = {1: ("data", 3)}
    ranks.train_in_turn({"n": 40, "ms": 20, "late": late}, {"n": 400, "ms": 20 * factor})
    found = ranks.timings.stragglers()
    assert [(one.rank, one.phase) for one in found.itertuples()] == [(1, "data")]
    assert found["first_iteration"].tolist() == [0]
    assert abs(found["last_iteration"].iloc[0] - 39) <= 2
    assert ranks.timings.summary().slowest_rank is None


def test_noise_of_one_training_is_not_that_of_another():
    """Long iterations vary by more than the whole delay; both are in one cell."""
    ranks = Ranks(noise=0.2)
    ranks.train_in_turn(
        {"n": 200, "ms": 500, "size": 9},
        {"n": 40, "ms": 20, "late": {0: ("backward", 15)}},
        {"n": 200, "ms": 500, "size": 9},
    )
    ((rank, phase, first, last, _),) = named(ranks)
    ranks.close()
    assert (rank, phase, first, last) == (0, "backward", 200, 239)


def test_gradients_of_changing_sizes_are_one_training(ranks):
    """As sparse ones are; a rank that is late in all iterations is late in all."""
    sizes = [{"n": 1, "ms": 20, "late": {1: ("data", 10)}, "size": 1 + i % 7} for i in range(60)]
    ranks.train_in_turn(*sizes)
    assert named(ranks) == [(1, "data", 0, 59, 10)]
