"""A live view shows a selection of iterations: the table, stragglers, older rows."""

from __future__ import annotations

from array import array
from dataclasses import replace
from types import SimpleNamespace
from weakref import WeakKeyDictionary

import numpy as np
import pytest
from synthetic_source import SyntheticSource
from timers import InThread

from workbench.fabric import fit
from workbench.resources import Unknown
from workbench.timings import Timings
from workbench.timings.figures import PROFILED
from workbench.timings.run import open_run
from workbench.timings.totals import MAX_RECORDS, total
from workbench.widgets import cluster_source, views
from workbench.widgets.cluster_source import ClusterSource
from workbench.widgets.live import LiveView
from workbench.widgets.messages import MAX_ROWS, answer
from workbench.widgets.source import COLUMNS, TimingsReading
from workbench.widgets.tables import summary_table, summary_text
from workbench.wire import Flag, IterationRecord, Layout

MS = 1_000_000
TICKS_A_MS = 10_000


def layout(sizes, names=None):
    """The collectives of an iteration, as records of this version name them."""
    names = names or [f"layer{place}" for place in range(len(sizes))]
    n = len(sizes)
    return Layout(
        0, tuple(names), tuple(sizes), (1,) * n, ("allreduce",) * n, (0,) * n, (2,) * n,
        ("optimizer",) * n, ("GLOO_ALLREDUCE",) * n,
    )  # fmt: skip


def iteration(index, finished, begin=8, *, together=False, **more):
    """20 ms: data until `begin`, then collectives that finish at `finished`, in ms."""
    phases = dict.fromkeys(
        (f"{name}_ns" for name in ("data", "forward", "backward", "optimizer", "other")), 0
    )
    phases["data_ns"] = begin * MS
    phases["exposed_ns"] = (max(finished) - begin) * MS
    phases["copy_ns"] = 0
    done = array("I", [at * TICKS_A_MS for at in finished])
    submitted = array("I", [begin * TICKS_A_MS] * len(finished))
    # in one buffer, or each in a buffer of its own, which begins when the one before it ends
    begins = submitted if together else array("I", [submitted[0], *done[:-1]])
    return IterationRecord(
        1, index, index * 20 * MS, 20 * MS, **phases,
        communication_ns=(max(finished) - begin) * MS, overlapped_ns=0,
        size_bytes=3_000_000, tensors=len(finished), world_size=2, layout=0,
        submitted=submitted, responded=begins, began=begins, ended=done, finished=done, **more,
    )  # fmt: skip


IDLE = {"state": "ready", "profiling": SimpleNamespace(state="none", latest=None)}


@pytest.fixture
def cluster():
    """The cluster of a live view, around real timings of two ranks."""
    timings = Timings()
    ranks = [SimpleNamespace(rank=rank, vm="vm1", gpu="CPU", nic="lo") for rank in range(2)]
    cluster = SimpleNamespace(timings=timings, ranks=ranks, n=2, fabric=None, **IDLE)
    yield cluster
    timings.close()


@pytest.fixture
def trained_run(tmp_path, monkeypatch):
    """A stored run of two ranks, of whom one is later in each iteration."""
    monkeypatch.setenv("GRADIENT_WORKBENCH_RUNS", str(tmp_path))
    timings = Timings()
    ranks = [{"rank": rank, "vm": "vm1"} for rank in range(2)]
    timings.keep("earlier", ranks)
    timings.begin_cell(1)
    store = timings._store
    for rank in range(2):
        store.add_layout(rank, layout([2_000_000]))
        for index in range(12):
            record = iteration(index, [12])
            flags = Flag.NONE if index else Flag.FIRST_OF_CELL
            longer_ns = record.duration_ns + (index + 3 * rank) * MS
            store.add(rank, replace(record, duration_ns=longer_ns, flags=flags))
    timings.end_cell(1, {0: 12, 1: 12})
    path = timings.path
    timings.close()
    return open_run(path)


def train(cluster, iterations, late=0, start=0):
    """Both ranks report; rank 1 arrives `late` ms after rank 0."""
    store = cluster.timings._store
    for rank in range(2):
        store.add_layout(rank, layout([2_000_000, 1_000_000]))
    for index in range(start, start + iterations):
        store.add(0, iteration(index, [12 + late, 14 + late]))
        store.add(1, iteration(index, [12 + late, 14 + late], begin=8 + late))


def test_each_collective_is_charged_what_it_was_waited_for(cluster):
    """Exposed from 8 to 14 ms: the first is served until 12, the second from there on."""
    train(cluster, 10)
    totals = cluster.timings.collective_totals(0, 9)
    first, second = totals.collectives
    assert (first.name, second.name) == ("layer0", "layer1")
    assert first.exposed_share == pytest.approx(4 / 6)
    assert second.exposed_share == pytest.approx(2 / 6)
    assert (first.mean_us, second.mean_us) == (4000, 6000)
    assert first.busbw_gbps == pytest.approx(2e6 * 8 / 4e6)  # 2(n-1)/n is 1 for two ranks
    assert (totals.first_iteration, totals.last_iteration) == (0, 9)


def test_collectives_of_one_buffer_share_by_their_bytes(cluster):
    """Collectives that always run together share their time by their bytes."""
    store = cluster.timings._store
    store.add_layout(0, layout([3_000_000, 1_000_000]))
    for index in range(5):
        store.add(0, iteration(index, [14, 14], together=True))
    large, small = cluster.timings.collective_totals(0, 4).collectives
    assert (large.exposed_share, small.exposed_share) == pytest.approx((0.75, 0.25))


def test_a_collective_is_one_row_whatever_comes_with_it(cluster):
    """A metric in every fourth iteration does not split the gradients' figures in two."""
    store = cluster.timings._store
    for index in range(8):
        now_and_then = index % 4 == 3
        store.add_layout(0, layout([3_000_000, 4][: 1 + now_and_then]))
        store.add(0, iteration(index, [12, 13] if now_and_then else [10]))
    rows = {one.name: one for one in cluster.timings.collective_totals(0, 7).collectives}
    assert len(cluster.timings.collective_totals(0, 7).collectives) == len(rows) == 2
    assert rows["layer0"].mean_us == pytest.approx((6 * 2000 + 2 * 4000) / 8)
    assert rows["layer0"].busbw_gbps == pytest.approx(3e6 * 8 / 2.5e6)
    assert sum(one.exposed_share for one in rows.values()) == pytest.approx(1)


def test_only_the_selection_that_is_requested(cluster):
    """Iterations before and after it do not count."""
    train(cluster, 30)
    cluster.timings._store.add(0, iteration(30, [9, 10]))
    totals = cluster.timings.collective_totals(30, 30)
    assert [one.mean_us for one in totals.collectives] == [2000, 1000]
    assert cluster.timings.collective_totals(100, 200).collectives == ()


@pytest.mark.slow
def test_many_records_are_sampled_evenly(cluster):
    """An hour costs no more than `MAX_RECORDS`; both halves of it count."""
    train(cluster, MAX_RECORDS)
    records = cluster.timings._store.collectives.between()
    totals = total(records)
    assert (totals.first_iteration, totals.last_iteration) == (0, MAX_RECORDS - 1)
    assert sum(one.exposed_share for one in totals.collectives) == pytest.approx(1)


def test_a_source_says_who_is_late_and_since_when(cluster):
    """The newest iterations are searched; what was found to begin earlier keeps its beginning."""
    source = ClusterSource(cluster)
    train(cluster, 60)
    assert source.details().stragglers == ()
    for start in (60, 140, 220):
        train(cluster, 80, late=3, start=start)
        [late] = source.details().stragglers
        assert (late.rank, late.phase) == (1, "data")
        assert late.first_iteration == 60
    assert late.excess_us == late.late_us == pytest.approx(3000)
    assert late.last_iteration == 299


def test_a_selection_is_answered_with_its_own_figures(cluster):
    """The summary of a selection is of its rows, not of the newest."""
    source = ClusterSource(cluster)
    train(cluster, 50)
    train(cluster, 50, late=4, start=50)
    quiet, late = source.details(10, 40), source.details(60, 90)
    assert isinstance(quiet.summary.slowest_rank, Unknown)
    assert late.summary.slowest_rank == 1
    assert (late.summary.iteration, quiet.summary.iteration) == (90, 40)
    assert [one.name for one in quiet.collectives] == ["layer0", "layer1"]


def test_the_calibrated_line_is_of_this_runs_size(cluster):
    """The rate that an allreduce of the iteration's bytes should reach, or how to measure it."""
    source = ClusterSource(cluster)
    train(cluster, 10)
    assert "calibrate" in source.summary().calibrated_gbps.reason
    cluster.fabric = fit([1000, 1_000_000], [1001.0, 2000.0], 2)
    expected = 3e6 * 8 / (cluster.fabric.predict_us(3e6) * 1e3)
    assert source.summary().calibrated_gbps == pytest.approx(expected)
    assert "one machine" in source.summary().nominal_gbps.reason


def test_older_rows_come_on_request(cluster):
    """A page requests the iterations before its oldest: complete ones, the nearest."""
    source = ClusterSource(cluster)
    train(cluster, 50)
    message = answer(source, {"type": "rows", "before": 20})
    data = np.frombuffer(message.buffers[0], "<f4").reshape(len(COLUMNS), message.content["rows"])
    assert (data[0].min(), data[0].max()) == (0, 19)
    assert message.content["rows"] == 40 <= MAX_ROWS


def test_means_leave_out_iterations_that_were_profiled_on_any_rank(cluster):
    """The rows mark them, and the tables say why they are missing."""
    train(cluster, 10)
    for index in range(10, 14):
        for rank in range(2):
            flags = Flag.PROFILED if rank == 1 else Flag.NONE
            cluster.timings._store.add(rank, iteration(index, [18, 19], flags=flags))
    reading = TimingsReading.take(ClusterSource(cluster), 100)
    marks = reading.window.data[COLUMNS.index("left_out")].reshape(14, 2)
    assert np.unique(marks[:10]).tolist() == [0]
    assert np.unique(marks[10:]).tolist() == [PROFILED]
    text = summary_text(reading)
    assert "Mean of iterations 0 to 9;" in text
    assert "4 iterations that were profiled are left out" in text
    assert "4 iterations that were profiled are left out" in summary_table(reading)


def test_the_iteration_times_of_an_earlier_run_come_on_request(cluster, trained_run):
    """Each is a mean over ranks; the mean of all leaves out what others leave out."""
    source = ClusterSource(cluster)
    assert trained_run.name in answer(source, {"type": "runs"}).content["runs"]
    asked = {"type": "earlier", "name": trained_run.name}
    found = answer(source, asked).content
    assert found["asked"] == asked
    rows = trained_run.rows()
    times = [
        rows["iteration_ns"][rows["iteration"] == at].mean() / 1e3
        for at in range(trained_run.iterations)
    ]
    assert found["earlier"]["times_us"] == pytest.approx(times, abs=0.1)
    assert found["earlier"]["each"] == 1
    assert found["earlier"]["mean_us"] == pytest.approx(trained_run.summary().iteration_us)
    missing = answer(source, {"type": "earlier", "name": "gone"}).content["earlier"]
    assert "there is no such run" in missing["unknown"]
    assert answer(source, {"type": "earlier"}) is None


def test_an_explanation_is_given_on_request(cluster):
    """The causes of the newest iterations, or the text of the error."""
    source = ClusterSource(cluster)
    none = answer(source, {"type": "explain"}).content["explanation"]
    assert none["unknown"].startswith("Nothing to explain: no iteration was recorded.")
    assert "No optimizer stepped" in none["unknown"]
    train(cluster, 30, late=4)
    found = answer(source, {"type": "explain"}).content["explanation"]
    assert (found["first_iteration"], found["last_iteration"]) == (0, 29)
    [late] = [one for one in found["causes"] if one["name"] == "waiting for rank 1"]
    assert late["saving_us"] == pytest.approx(4000)


def test_a_verdict_is_shown_after_the_end_of_its_cell(cluster):
    """Not while the next cell trains, and not with the iterations of another cell."""
    timings, source = cluster.timings, ClusterSource(cluster)
    train(cluster, 30, late=4)
    verdict = source.explain()
    timings.begin_cell(1)
    timings.conclude(verdict)
    assert source.status().verdict is None
    timings.end_cell(1, {0: 30, 1: 30})
    assert source.status().verdict == verdict
    for rank in range(2):
        timings._store.add(rank, replace(iteration(0, [12, 14]), cell=2))
    assert source.status().verdict is None


def test_a_page_without_a_kernel_has_the_verdict_and_its_causes():
    """In the HTML of a saved or exported notebook, once the cell has ended."""
    source = SyntheticSource(2)
    source.step(20)
    assert "Verdict" not in LiveView(source)._repr_mimebundle_()["text/html"]
    source.end()
    page = LiveView(source)._repr_mimebundle_()["text/html"]
    assert "Verdict: 18.5 ms per iteration; first cause: exposed communication" in page
    assert "training waits 5.60 ms for &lt;gradients&gt;" in page
    assert "up to 2.80 ms (15%)" in page


def test_what_no_page_asks_for_is_left_alone():
    """A request of a later version gets no answer, and breaks nothing."""
    assert answer(SyntheticSource(2), {"type": "of tomorrow"}) is None


def test_an_answer_names_what_was_asked():
    """A page can distinguish its own request from another page's."""
    source = SyntheticSource(2)
    source.step(20)
    asked = {"type": "details", "first": 3, "last": 7}
    content = answer(source, asked).content
    assert content["asked"] == asked
    assert content["details"]["last_iteration"] == 7
    assert content["details"]["collectives"][0]["kind"] == "allreduce"


@pytest.mark.parametrize("ask", ["window", "since", "before"])
def test_a_run_that_begins_while_rows_are_read_keeps_the_view(cluster, monkeypatch, ask):
    """The rows of the earlier run are returned, and those of the new run start at zero."""
    train(cluster, 50, start=10)
    earlier, source = cluster.timings, ClusterSource(cluster)
    requests = {
        "window": lambda: source.window(100),
        "since": lambda: source.since(90),
        "before": lambda: source.before(40, 100),
    }
    usual = cluster_source.columns

    def columns(rows):
        if cluster.timings is earlier:
            cluster.timings = Timings()
            in_thread = InThread(source.status)
            in_thread.join()
        return usual(rows)

    monkeypatch.setattr(cluster_source, "columns", columns)
    assert requests[ask]().data.shape[1] >= 10
    monkeypatch.undo()
    train(cluster, 20, start=20)
    ends = source.window(100).data[COLUMNS.index("end_s")]
    assert ends.min() == pytest.approx(0.02)
    earlier.close()


def test_a_summary_of_an_earlier_run_adds_nothing_to_the_totals_of_the_new_one(cluster):
    """Another thread has seen the new run first."""
    train(cluster, 10)
    earlier, source = cluster.timings, ClusterSource(cluster)
    source.status()
    cluster.timings = Timings()
    source.status()
    assert isinstance(source._progress(earlier, earlier.rows(0)), Unknown)
    assert source._rows_totalled == 0
    earlier.close()


class StoppedCluster:
    """A cluster whose timings are closed."""

    def __init__(self):
        self.timings = SimpleNamespace(closed=True)


def test_a_view_of_a_stopped_cluster_is_closed_once(monkeypatch):
    """A cell and the panel open a view of the current cluster at the same time."""
    stopped, current, closed = StoppedCluster(), StoppedCluster(), []

    def close(view):
        closed.append(view)
        InThread(views.timings_view, current, "live").join()

    monkeypatch.setattr(views, "_live_views", WeakKeyDictionary())
    monkeypatch.setattr(LiveView, "close", close)
    old = views.timings_view(stopped, "live")
    new = views.timings_view(current, "live")
    assert closed == [old]
    assert views.timings_view(current, "live") is new
