"""Key figures and waiting, from rows of iterations."""

import math
from array import array
from types import SimpleNamespace

import numpy as np
import pytest
from iterations import MS, both, record, store

from workbench.advisor import explain
from workbench.timings.compare import compare
from workbench.timings.derive import columns
from workbench.timings.store import Store
from workbench.timings.stragglers import find
from workbench.timings.summary import summarize
from workbench.widgets.grid import Grid, rank_means
from workbench.widgets.source import COLUMNS, RowWindow
from workbench.wire import Flag, Layout


def test_bandwidths_follow_their_definitions():
    """Algorithm bandwidth is bytes over time; busbw is 2(n-1)/n of it."""
    for world in (1, 2, 4, 8):
        table = columns(store((0, record(0, world=world))).rows())
        assert table["algbw_gbps"][0] == pytest.approx(1e6 * 8 / 10e6)
        assert table["busbw_gbps"][0] == pytest.approx(0.8 * 2 * (world - 1) / world)
        assert table["overlap"][0] == pytest.approx(0.6)


def test_without_communication_nothing_is_divided():
    """No gradients: bandwidth and overlap are not known, rather than zero."""
    table = columns(store((0, record(0, communication=0, exposed=0, size=0))).rows())
    assert all(math.isnan(table[name][0]) for name in ("algbw_gbps", "busbw_gbps", "overlap"))


def test_waiting_needs_every_rank():
    """A rank's waiting is not known until all ranks of the ring have reported."""
    rows = [*both([0], late=20), (0, record(1))]
    table = columns(store(*rows).rows())
    assert table["wait_us"][:2].tolist() == [20_000, 0]
    assert math.isnan(table["wait_us"][2])


def test_the_summary_is_of_the_warm_iterations():
    """The first iteration of a cell is left out of the figures."""
    slow = record(0, data=1000, flags=Flag.FIRST_OF_CELL)
    found = summarize(store((0, slow), *((0, record(i)) for i in range(1, 11))).rows())
    assert found.iteration == 10
    assert found.iterations == 10
    assert found.iteration_us == 20_000
    assert found.iterations_per_s == pytest.approx(50)
    assert found.exposed_share == pytest.approx(4 / 20)
    assert sum(found.phases_us.values()) == pytest.approx(20_000)
    assert (found.bytes, found.tensors) == (1_000_000, 6)


def test_a_summary_of_nothing():
    """Before the first iteration every figure is not a number, and nothing is raised."""
    found = summarize(Store().rows())
    assert found.iteration == -1
    assert math.isnan(found.iteration_us)
    assert found.slowest_rank is None


def test_a_wait_before_the_last_collective_is_waiting():
    """A rank that is late for an averaged loss is named, though its gradients come in time."""
    filled = Store()
    for index in range(20):
        for rank in range(3):
            late, waits = 30 * (rank == 1), 30 * (rank != 1)
            row = record(index, world=3, data=1 + late, communication=10 + waits,
                         exposed=4 + waits, stopped_ns=(1 + waits) * MS)  # fmt: skip
            filled.add(rank, row)
    table = columns(filled.rows())
    assert set(table["wait_us"][table["rank"] != 1]) == {30_000}
    assert set(table["wait_us"][table["rank"] == 1]) == {0}
    (found,) = find(filled.rows())
    assert (found["rank"], found["phase"], found["late_us"]) == (1, "data", 30_000)


def test_one_rank_late_before_another_late_at_the_last():
    """Each waits for the other once: both waits are counted, and neither is late in the end."""
    filled = Store()
    for rank, stopped in enumerate((30, 0)):
        last = 30 - stopped
        mark = array("I", [0]), array("I", [(2 + last) * 10_000])
        row = record(0, exposed=32, communication=32, stopped_ns=stopped * MS,
                     submitted=mark[0], responded=mark[0], began=mark[0],
                     ended=mark[1], finished=mark[1])  # fmt: skip
        filled.add(rank, row)
    table = columns(filled.rows())
    assert table["wait_us"].tolist() == [30_000, 30_000]


def test_process_sets_are_rings_of_their_own():
    """Bandwidth is by the ranks of the set, and nobody waits for a rank of another one."""
    filled = Store()
    for rank in range(4):
        sets, ranks = (1 + rank // 2,), (2,)
        filled.add_layout(
            rank,
            Layout(0, ("a",), (400,), (1,), ("allreduce",), sets, ranks, ("optimizer",), ("",)),
        )
    for index in range(20):
        for rank in range(4):
            late, waits = 30 * (rank == 1), 30 * (rank == 0)
            row = record(index, world=4, data=1 + late, communication=10 + waits,
                         exposed=4 + waits, layout=0)  # fmt: skip
            filled.add(rank, row)
    table = columns(filled.rows())
    assert table["busbw_gbps"] == pytest.approx(table["algbw_gbps"])
    (found,) = find(filled.rows())
    assert (found["rank"], found["phase"], found["late_us"]) == (1, "data", 30_000)
    assert set(table["wait_us"][table["rank"] == 0]) == {30_000}
    assert set(table["wait_us"][table["rank"] > 0]) == {0}


def test_a_rank_that_communicates_now_and_then_waits_for_no_more_than_it_is_stopped():
    """A rank outside a process set joins the others in one iteration of ten."""
    filled = Store()
    for number, size in ((0, 3), (1, 2)):
        layout = Layout(
            number, ("a",), (400,), (1,), ("allreduce",), (number,), (size,), ("optimizer",), ("",)
        )
        for rank in (0, 1):
            filled.add_layout(rank, layout)
    for index in range(20):
        joins = index % 10 == 9
        for rank in (0, 1):
            filled.add(rank, record(index, world=3, layout=0 if joins else 1))
        stopped = 60 if joins else 0
        filled.add(2, record(index, world=3, exposed=stopped, communication=stopped))
    rows = filled.rows()
    table = columns(rows)
    assert table["exposed_us"][table["rank"] == 2].mean() == pytest.approx(6_000)
    assert table["wait_us"][table["rank"] == 2].mean() == pytest.approx(5_000)


def test_iterations_without_communication_do_not_say_how_the_others_divide():
    """Gradients averaged every tenth time by a backend whose transfers are not recorded."""
    rows = store(
        *both(range(9), exposed=0, communication=0, flags=Flag.TRANSFERS_SEEN),
        *both([9], late=20),
        *both(range(10, 19), exposed=0, communication=0, flags=Flag.TRANSFERS_SEEN),
        *both([19], late=20),
    ).rows()
    found = summarize(rows)
    assert found.exposed_us == pytest.approx(1400)
    assert found.waiting_us == pytest.approx(1000)
    assert math.isnan(found.queued_us)
    assert math.isnan(found.transfer_us)
    assert "queueing" not in {cause.name for cause in explain(SimpleNamespace(rows=lambda: rows))}
    window = RowWindow(0, np.array([columns(rows).get(name, np.zeros(40)) for name in COLUMNS]))
    by_rank, _ = rank_means(Grid(window, [0, 1]), ["exposed_us", "wait_us", "transfer_us"])
    assert by_rank["exposed_us"].tolist() == pytest.approx([2400, 400])
    assert by_rank["wait_us"].tolist() == pytest.approx([2000, 0])
    assert np.isnan(by_rank["transfer_us"]).all()
    figures = {one.figure: one.a for one in compare(rows, rows, ("a", "b")).differences}
    assert figures["wait_us"] == pytest.approx(1000)
    assert not {"queued_us", "transfer_us"} & set(figures)


def test_ranks_outside_a_process_set_are_not_waited_for():
    """A set's figures are known as soon as its own ranks have reported."""
    filled = Store()
    for rank, late in ((0, 0), (2, 20)):
        filled.add_layout(
            rank,
            Layout(0, ("a",), (400,), (1,), ("allreduce",), (1,), (2,), ("optimizer",), ("",)),
        )
        row = record(0, world=3, communication=30 - late, exposed=24 - late, layout=0)
        filled.add(rank, row)
    assert columns(filled.rows())["wait_us"].tolist() == [20_000, 0]
