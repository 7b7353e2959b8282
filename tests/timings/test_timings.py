"""What is made of the ranks' records: tables, key figures, stragglers, causes."""

import math
from array import array
from types import SimpleNamespace

import numpy as np
import pytest
from iterations import MS, both, record, store

from workbench.advisor import explain
from workbench.errors import UsageError
from workbench.fabric import fit, halving_doubling_us, ring_us, tree_us
from workbench.timings import Timings
from workbench.timings.compare import compare
from workbench.timings.derive import columns
from workbench.timings.store import ROW, Store
from workbench.timings.stragglers import find
from workbench.timings.summary import summarize
from workbench.widgets.grid import Grid, rank_means
from workbench.widgets.source import COLUMNS, RowWindow
from workbench.widgets.views import Causes
from workbench.wire import Flag, Layout, Outbox
from workbench.wire.rank_messages import Records


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
    by_rank = rank_means(Grid(window, [0, 1]), ["exposed_us", "wait_us", "transfer_us"])
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


def test_only_a_rank_that_is_late_throughout_is_named():
    """A rank late in most iterations is named with the wait; one late by noise is not."""
    assert summarize(store(*both(range(20), late=20)).rows()).slowest_rank == 1
    assert summarize(store(*both(range(20), late=20)).rows()).slowest_excess_us == 20_000
    assert summarize(store(*both(range(20))).rows()).slowest_rank is None
    now_and_then = [*both(range(0, 20, 2), late=20), *both(range(1, 20, 2))]
    assert summarize(store(*now_and_then).rows()).slowest_rank is None


def test_stragglers_are_named_by_span():
    """Each span has its rank, phase and excess; one stray iteration does not end it."""
    rows = [*both(range(10)), *both(range(10, 20), late=20)]
    rows += [(0, record(20, data=31)), (1, record(20, communication=40, exposed=34))]
    rows += [*both(range(21, 30), late=20), *both(range(30, 40))]
    (found,) = find(store(*rows).rows())
    assert math.isnan(found.pop("uncertainty_us"))  # no clock was asked
    assert found == {
        "rank": 1, "phase": "data", "excess_us": 20_000,
        "first_iteration": 10, "last_iteration": 29,
        "kind": "slow data", "how_often": "from 10 to 29", "late_us": 20_000,
    }  # fmt: skip


def test_a_straggler_from_first_to_last_is_always_one():
    """What is true for the complete run is reported so, in the phase in which the rank differs."""
    (found,) = find(store(*both(range(20), late=20)).rows())
    assert (found["how_often"], found["kind"]) == ("always", "slow data")


def test_one_late_iteration_is_named_as_one():
    """A pause of one iteration is reported once, and noise of the same size around it is not."""
    rows = [*both(range(30)), *both([30], late=500), *both(range(31, 60))]
    (found,) = find(store(*rows).rows())
    assert (found["rank"], found["first_iteration"], found["last_iteration"]) == (1, 30, 30)
    assert (found["how_often"], found["excess_us"]) == ("one iteration", 500_000)
    restless = [row for i in range(60) for row in both([i], late=400 if i % 7 == 3 else 0)]
    assert find(store(*restless).rows()) == []


def test_noise_names_nobody():
    """Ranks whose phases vary by a third, and independently, are not named."""
    random = np.random.default_rng(1)
    rows = []
    for index in range(2_000):
        late = random.gamma(1.0, 3.0, 2)
        for rank in (0, 1):
            waited = max(0.0, late[1 - rank] - late[rank])
            rows.append((rank, record(index, data=1 + late[rank], exposed=4 + waited,
                                      communication=10 + waited)))  # fmt: skip
    assert find(store(*rows).rows()) == []
    assert summarize(store(*rows).rows(), 100).slowest_rank is None


def test_a_loader_that_is_slow_by_fits_is_named():
    """A rank whose loading takes long, but never equally long, is named over a long span."""
    random = np.random.default_rng(2)
    rows = [row for i in range(200) for row in both([i], late=random.gamma(4.0, 5.0))]
    (found,) = find(store(*rows).rows())
    assert (found["rank"], found["phase"], found["how_often"]) == (1, "data", "always")


def test_work_during_communication_costs_nobody():
    """A rank that is longer in a phase while the others do not wait for it is not named."""
    rows = [(rank, record(i, data=1 + 20 * rank)) for i in range(20) for rank in (0, 1)]
    assert find(store(*rows).rows()) == []


def test_nobody_waits_longer_than_training_waits():
    """A rank that sees the end late, because it was busy, has not waited for that long."""
    rows = [(0, record(0, communication=40, exposed=3)), (1, record(0))]
    assert columns(store(*rows).rows())["wait_us"].tolist() == [3_000, 0]


def test_a_link_that_becomes_slow_is_no_rank():
    """Collectives that take longer on all ranks alike: a link, reported where it was slow."""
    rows = [*both(range(40)), *both(range(40, 70), communication=60, exposed=54)]
    (found,) = find(store(*rows).rows())
    assert (found["kind"], found["rank"], found["phase"]) == ("slow link", -1, "communication")
    assert (found["first_iteration"], found["last_iteration"]) == (40, 69)
    assert found["excess_us"] == 50_000


def test_a_rank_that_computes_before_it_polls_is_no_link():
    """What a rank sees late, for it was busy when the others were done, took no longer."""
    rows = []
    for index in range(80):
        busy = 30 if index < 40 else 0
        rows.append((0, record(index, communication=2 + busy, exposed=2 + busy)))
        rows.append((1, record(index, communication=2 + busy, exposed=2, other=busy)))
    told = store(*rows).rows()
    clocked = np.zeros(len(told), dtype=ROW)
    for name in told.dtype.names:
        clocked[name] = told[name]
    # rank 1 comes after its last pause: the gradients are reduced 2 ms later, and rank 0 sees it
    clocked["start_ns"] += np.where(told["rank"] == 1, told["other_ns"], 0)
    clocked["last_ns"] = 14 * MS
    clocked["done_ns"] = clocked["last_ns"] + told["communication_ns"]
    clocked["uncertainty_ns"] = 0.1 * MS
    assert {one["kind"] for one in find(clocked)} == {"slow compute"}


def test_a_store_forgets_the_oldest_half_and_counts_it():
    """Memory is bounded; the newest rows are all there."""
    small = Store(row_limit=100)
    for index in range(250):
        small.add(0, record(index))
    assert len(small.rows()) <= 100
    assert small.total == 250
    assert small.forgotten == 250 - len(small.rows())
    assert small.rows()["iteration"][-1] == 249
    assert (np.diff(small.rows()["iteration"]) == 1).all()
    assert small.rows(start=240)["iteration"].tolist() == list(range(240, 250))


def test_iterations_of_a_second_cell_go_on():
    """A cell's numbers begin after the last of the cells before, whichever rank is first."""
    rows = [*both(range(3)), *((1, record(i, cell=2)) for i in range(2))]
    rows += [(0, record(i, cell=2)) for i in range(2)]
    assert store(*rows).rows()["iteration"].tolist() == [0, 0, 1, 1, 2, 2, 3, 4, 3, 4]


@pytest.fixture
def timings():
    door = Timings()
    door.listen()
    yield door
    door.close()


def test_records_come_in_over_the_channel(timings):
    """What a rank sends is in the table; collectives have their names and intervals."""
    outbox = Outbox(timings.address_for(0))
    layout = Layout(
        0, ("a", "b"), (400, 800), (1, 2), ("allreduce",) * 2, (0, 0), (2, 2),
        ("optimizer", "cell"), ("GLOO_ALLREDUCE",) * 2,
    )  # fmt: skip
    intervals = {
        "submitted": array("I", [10, 20]),
        "responded": array("I", [15, 25]),
        "began": array("I", [16, 26]),
        "ended": array("I", [28, 38]),
        "finished": array("I", [30, 40]),
    }
    timings.begin_cell(1)
    outbox.send(layout)
    for index in range(3):
        outbox.send(Records((record(index, **intervals).pack(),)))
    assert timings.end_cell(1, {0: 3})
    assert timings.to_frame()["iteration"].tolist() == [0, 1, 2]
    found = timings.collectives()
    assert found[found["iteration"] == 0]["name"].tolist() == ["a", "b"]
    assert found["duration_us"].tolist() == [2.0, 2.0] * 3
    assert found["tensors"].tolist() == [1, 2] * 3
    assert found["by"].tolist() == ["optimizer", "cell"] * 3
    outbox.close()


def test_an_unreadable_record_is_counted(timings):
    """A record that is cut short is counted as dropped, and the next one arrives."""
    outbox = Outbox(timings.address_for(0))
    timings.begin_cell(1)
    outbox.send(Records((record(0).pack()[:50],)))
    outbox.send(Records((record(1).pack(),)))
    assert timings.end_cell(1, {0: 1})
    assert timings.dropped == 1
    assert "cut short" in timings.errors[0]
    outbox.close()


def test_what_is_missing_at_a_cells_end_is_reported(timings):
    """Waiting for records that never come ends, and says that some are missing."""
    timings.begin_cell(1)
    assert not timings.end_cell(1, {0: 5}, timeout_s=0.05)


def cluster_of(rows, fabric=None):
    """All that `explain` asks of a cluster."""
    filled = store(*rows)
    return SimpleNamespace(timings=SimpleNamespace(rows=filled.rows), fabric=fabric)


def test_causes_are_ranked_by_saving():
    """A late rank, exposed communication and data loading, the dearest first."""
    causes = explain(cluster_of(both(range(20), late=20)))
    assert [cause.name for cause in causes] == sorted(
        (cause.name for cause in causes),
        key=lambda name: -{c.name: c.saving_us for c in causes}[name],
    )
    assert causes[0].name == "waiting for rank 1"
    assert causes[0].saving_us == 20_000
    assert "slow data, throughout: its data takes 20.00 ms longer" in causes[0].evidence


def test_waiting_for_a_late_rank_is_not_counted_as_communication_too():
    """What the others wait for a rank is that rank's to save; communication has the rest."""
    causes = {cause.name: cause for cause in explain(cluster_of(both(range(20), late=20)))}
    prompt = {cause.name: cause for cause in explain(cluster_of(both(range(20))))}
    alone = prompt["exposed communication"].saving_us
    assert causes["waiting for rank 1"].saving_us == 20_000
    assert causes["exposed communication"].saving_us == pytest.approx(alone, abs=1)
    assert (
        "10.00 ms of it is waiting for the late ranks" in causes["exposed communication"].evidence
    )
    assert "waiting" not in prompt["exposed communication"].evidence


def test_waiting_after_a_late_optimizer_is_not_counted_as_communication_too():
    """An optimizer, or a checkpoint after it, delays the next iteration: the others wait there."""
    rows = list(both(range(40)))
    rows[40] = (0, record(20, other=300))
    rows[43] = (1, record(21, communication=310, exposed=304))
    causes = {cause.name: cause for cause in explain(cluster_of(rows))}
    assert causes["waiting for rank 0"].saving_us == pytest.approx(300_000 / 40)
    communication = causes["exposed communication"]
    assert communication.saving_us == pytest.approx(4_000)
    assert "3.75 ms of it is waiting for the late ranks" in communication.evidence


def in_turn(late_ms):
    """Rows of two ranks; in each iteration one rank is late, by what is given for both."""
    for index, late in enumerate(late_ms):
        for rank, own in enumerate(late):
            waited = max(late) - own
            yield (
                rank,
                record(index, data=1 + own, communication=10 + waited, exposed=4 + waited),
            )


def test_ranks_that_are_late_in_turn_are_a_cause():
    """Batches of different lengths: no rank is always late, and fewer bytes would save nothing."""
    noise = np.random.default_rng(1)
    cluster = cluster_of(in_turn(noise.permutation([0, 30]) for _ in range(60)))
    causes = {cause.name: cause for cause in explain(cluster)}
    assert set(causes) == {"uneven iterations", "data loading", "exposed communication"}
    uneven = causes["uneven iterations"]
    assert uneven.saving_us == pytest.approx(15_000)
    assert "wait 15.00 ms per iteration for the last one, which is not always" in uneven.evidence
    communication = causes["exposed communication"]
    assert communication.saving_us == pytest.approx(4_000)
    assert "15.00 ms of it is due to uneven iterations" in communication.evidence


def test_a_rank_that_is_late_now_and_then_is_named():
    """A checkpoint of one rank in every tenth iteration is no span, and the others wait for it."""
    late = [(300 if index % 10 == 9 else 0, 0) for index in range(80)]
    causes = {cause.name: cause for cause in explain(cluster_of(in_turn(late)))}
    uneven = causes["uneven iterations"]
    assert "(100% of such waiting), which is late by varying times" in uneven.evidence
    waits = f"the others wait {uneven.saving_us / 1e3:.2f} ms per iteration for rank 0 "
    assert uneven.evidence.startswith(waits)
    assert "np." not in repr(uneven)
    assert uneven.saving_us == pytest.approx(30_000)
    assert causes["exposed communication"].saving_us == pytest.approx(4_000)


def test_ranks_that_wait_little_for_each_other_are_even():
    """What noise alone makes ranks wait is no cause."""
    noise = np.random.default_rng(2)
    for cluster in (
        cluster_of(in_turn(noise.uniform(0, 4, (200, 2)))),
        cluster_of(in_turn([(0, 30), (30, 0)])),  # too few iterations to say how they vary
    ):
        assert "uneven iterations" not in {cause.name for cause in explain(cluster)}


def test_one_rank_has_no_communication_to_explain():
    """What Horovod takes for one rank's gradients is nothing that fewer bytes would save."""
    alone = [(0, record(index, world=1)) for index in range(20)]
    assert "exposed communication" not in {cause.name for cause in explain(cluster_of(alone))}


def test_the_latest_iterations_can_be_explained_alone():
    """A rank that was late only before is a cause of all iterations, and none of the latest."""
    cluster = cluster_of([*both(range(20), late=20), *both(range(20, 60))])
    assert "waiting for rank 1" in {cause.name for cause in explain(cluster)}
    assert "waiting for rank 1" not in {cause.name for cause in explain(cluster, latest=30)}


def test_a_known_fabric_shows_what_compression_saves():
    """With a fitted line, halving the bytes saves half of what they take."""
    fabric = fit([1_000, 1_000_000], [1_000, 5_000], 2)
    causes = {cause.name: cause for cause in explain(cluster_of(both(range(20)), fabric))}
    expected = fabric.us_per_byte * 500_000
    assert causes["bytes on the wire"].saving_us == pytest.approx(expected)
    assert not causes["bytes on the wire"].bound


def test_a_training_without_a_cause_is_said_in_text_too():
    """In a terminal there is the same sentence as in a notebook, not an empty line."""
    alone = [(0, record(index, world=1, data=0)) for index in range(20)]
    found = Causes(explain(cluster_of(alone)))
    assert repr(found) in found._repr_html_()
    assert repr(found).startswith("Nothing visible here slows down this training")


def test_nothing_recorded_cannot_be_explained():
    """Before a training ran there is a clear error."""
    with pytest.raises(UsageError, match="no iteration"):
        explain(cluster_of([]))


def test_a_fit_finds_the_line_that_made_the_times():
    """From times on a line, the line comes back; its error is that of the worst size."""
    sizes = [4096, 65536, 1 << 20, 1 << 24]
    fabric = fit(sizes, [50 + 0.001 * size for size in sizes], 4)
    assert fabric.fixed_us == pytest.approx(50)
    assert fabric.us_per_byte == pytest.approx(0.001)
    assert fabric.error < 1e-9
    assert fabric.busbw_gbps == pytest.approx(8 / 1e3 / 0.001 * 1.5)
    noisy = fit([1000, 2000], [100, 300], 2)
    assert noisy.fixed_us >= 0


def test_a_fit_takes_two_sizes():
    """One size gives no line."""
    with pytest.raises(UsageError, match="two sizes"):
        fit([100, 100], [1, 2], 2)


def test_cost_models_by_hand():
    """BERT-Large's 1.36 GB over 25 GbE on four ranks: 0.65 s by the exact ring."""
    assert ring_us(1.36e9, 4, 25) == pytest.approx(652_800)
    assert ring_us(0, 4, 25, latency_us=10) == 60
    assert halving_doubling_us(0, 8, 25, latency_us=10) == 60
    assert tree_us(1e6, 8, 8, latency_us=1) == pytest.approx(2006)
    assert [model(1e6, 1, 10, 5) for model in (ring_us, halving_doubling_us, tree_us)] == [0, 0, 0]
