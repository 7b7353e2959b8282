"""The summary, tables, the view, comparisons, traces and stored runs have the same figures."""

import re

import numpy as np
import pytest
from recorded import MS, ONE_VM, RankClock, iteration_record, recorded, true_start
from traces import read, slices
from true_figures import BEGIN, HEARD, rows_of

import workbench as wb
from workbench.cluster import TextSink
from workbench.timings.compare import compare
from workbench.timings.store import PHASES
from workbench.timings.summary import left_out_notes, notes, summarize
from workbench.widgets.cluster_source import ClusterSource
from workbench.widgets.rank_figures import ranks_figure
from workbench.widgets.runs import comparison_table, run_table
from workbench.widgets.source import TimingsReading
from workbench.widgets.tables import summary_text
from workbench.wire import Flag

SKEWED = [4.0] * 12 + [104.0] * 8
"""Exposed times whose median is far from their mean."""


def test_the_summary_adds_up():
    """Means: phases make the iteration, the exposed share is theirs, bandwidth is bytes a time."""
    found = summarize(rows_of(SKEWED))
    assert found.iterations == 20
    assert found.left_out == 1
    assert found.iteration_us == pytest.approx(60_000)
    assert sum(found.phases_us.values()) == pytest.approx(found.iteration_us)
    assert found.exposed_us == pytest.approx(found.phases_us["exposed"]) == pytest.approx(44_000)
    assert found.exposed_share == pytest.approx(found.exposed_us / found.iteration_us)
    assert found.iterations_per_s == pytest.approx(1e6 / found.iteration_us)
    assert found.communication_us == pytest.approx(found.exposed_us + found.overlapped_us)
    assert found.algbw_gbps == pytest.approx(found.bytes * 8 / found.communication_us / 1e3)


def test_a_comparison_has_the_summarys_figures():
    """Both of its columns are what the two summaries say, and it says what they leave out."""
    a, b = rows_of(SKEWED), rows_of([4.0] * 20)
    found = compare(a, b, ("a", "b"))
    by_name = {one.figure: one for one in found.differences}
    for name in ("iteration_us", "exposed_us", "communication_us", "algbw_gbps", "busbw_gbps"):
        one = by_name[name]
        assert one.a == pytest.approx(getattr(summarize(a), name)), name
        assert one.b == pytest.approx(getattr(summarize(b), name)), name
    assert found.left_out == (1, 1)
    assert "a: The first iteration is left out" in repr(comparison_table(found))


def test_profiled_iterations_are_not_said_to_warm_up():
    """A comparison and the figure by rank count them apart from first iterations."""
    a, b = rows_of([4.0] * 20), rows_of([4.0] * 20)
    chosen = np.isin(a["iteration"], np.unique(a["iteration"])[5:8])
    a["flags"][chosen] |= int(Flag.PROFILED)
    found = compare(a, b, ("a", "b"))
    assert found.left_out == (1, 1)
    text = repr(comparison_table(found))
    assert "a: The first iteration is left out: it warms up." in text
    assert "a: 3 iterations that were profiled are left out" in text
    assert left_out_notes(a) == notes(summarize(a))
    assert "cells are left out" not in text
    timings = recorded(20)
    rows = timings.rows()
    rows["flags"][np.isin(rows["iteration"], [5, 6, 7])] |= int(Flag.PROFILED)
    timings.rows = lambda: rows
    assert "3 iterations that were profiled are left out" in ranks_figure(timings).to_json()


def test_more_profiled_iterations_than_others_are_left_out_too():
    """A few others are enough for the figures, and the notes do not claim the opposite."""
    timings = recorded(20)
    rows = timings.rows()
    rows["flags"][np.isin(rows["iteration"], range(4, 20))] |= int(Flag.PROFILED)
    assert summarize(rows).iterations == 3
    left_out = "16 iterations that were profiled are left out"
    assert left_out in " ".join(notes(summarize(rows)))
    assert left_out in " ".join(left_out_notes(rows))
    only = rows[rows["iteration"] >= 4]
    assert "The figures are of 16 iterations that were profiled" in " ".join(notes(summarize(only)))


def test_one_of_anything_is_no_plural():
    """One rank and one iteration are counted in the singular."""
    rows = rows_of([4.0] * 20)
    one = rows[(rows["rank"] == 0) & (rows["iteration"] == rows["iteration"].min())]
    title = repr(comparison_table(compare(rows, one, ("a", "b"))))
    assert "a (20 iterations, 2 ranks)" in title
    assert "b (1 iteration, 1 rank)" in title


@pytest.mark.timing
def test_every_place_has_the_same_figures(cluster, trained):
    """Summary, tables, view and a stored run, of real ranks of whom one iteration is an outlier."""
    values, rows = trained(
        """
m = net(); optimizer = distributed(m); marks = []
def mark(m): marks.append(time.perf_counter() * 1e6)
for steps, after in (6, 0), (1, 0.4), (6, 0):
    _ = train(m, optimizer, steps=steps, reduce=mark, after=after)
marks[-1] - marks[0]
"""
    )
    found = summarize(rows)
    # the wall clock of the loops from the first step to the last
    assert found.iteration_us * 12 == pytest.approx(np.mean(list(values.values())), rel=0.1)
    assert sum(found.phases_us.values()) == pytest.approx(found.iteration_us, rel=1e-6)
    reading = TimingsReading.take(ClusterSource(cluster), len(rows))
    head, *table = (line.split("  ") for line in summary_text(reading).splitlines())
    means = {}
    for line in table[:2]:
        cells = [cell.strip() for cell in line if cell.strip()]
        names = [cell.strip() for cell in head if cell.strip()]
        for name, cell in zip(names, cells[1:], strict=True):
            means.setdefault(name, []).append(float(cell))
    assert reading.window.rows == len(rows)
    for phase in set(PHASES) - {"copy"}:
        assert np.mean(means[phase]) == pytest.approx(found.phases_us[phase] / 1e3, abs=0.006)
    assert np.mean(means["iteration"]) == pytest.approx(found.iteration_us / 1e3, abs=0.006)
    assert "The first iteration is left out: it warms up." in summary_text(reading)
    details = ClusterSource(cluster).details(int(rows["iteration"].min()), found.iteration)
    assert details.summary.iteration_us == pytest.approx(found.iteration_us)
    assert details.summary.exposed_us == pytest.approx(found.exposed_us)
    assert details.summary.notes == notes(found)


@pytest.fixture(scope="module")
def training_run():
    """A run of two cells on real ranks, read from disk."""
    with wb.Cluster(n=2) as cluster:
        for _ in range(2):
            cluster.run(BEGIN + HEARD["Horovod"], sink=TextSink())
    return wb.open_run(cluster.timings.path)


@pytest.mark.slow
def test_an_opened_run_adds_up(training_run):
    """`%timings open`: phases add up to the iteration; omitted first iterations are noted."""
    text = repr(run_table(training_run))
    figures = dict(re.findall(r"(?m)^\s*(\w[\w ]*?)\s{2,}([\d.]+) ms", text))
    whole = float(figures["iteration"])
    assert sum(float(figures[phase]) for phase in PHASES) == pytest.approx(whole, abs=0.04)
    assert "are left out: they warm up" in text
    assert "Means over" in text


def test_what_ran_before_and_after_the_iterations_is_in_the_trace(tmp_path):
    """Startup broadcasts and a last metric: the trace has as many as `collectives()`."""
    outside = []
    for start in (true_start(0) - 300 * MS, true_start(3) + 500 * MS):
        outside.append(iteration_record(0, 0, RankClock()))
        outside[-1].flags |= Flag.OUTSIDE
        outside[-1].start_ns = start
    timings = recorded(4, vms=ONE_VM, more={0: outside})
    found = slices(read(timings.to_trace(tmp_path / "t.json")), "collective")
    assert len(found) == len(timings.collectives())
    assert min(one["ts"] for one in found) >= 0
    some = slices(read(timings.to_trace(tmp_path / "u.json", iterations=(1, 2))), "collective")
    assert len(some) == len(timings.collectives(1, 2))


@pytest.mark.slow
def test_startup_broadcasts_of_real_ranks_are_in_the_trace(tmp_path):
    """The parameters' broadcast lies before the first iteration."""
    with wb.Cluster(n=2) as cluster:
        start = "hvd.broadcast_parameters(m.state_dict(), root_rank=0)\n"
        cell = HEARD["Horovod"].replace("train(", f"\n{start}train(")
        cluster.run(BEGIN + cell, sink=TextSink())
        trace = read(cluster.timings.to_trace(tmp_path / "t.json"))
        table = cluster.timings.collectives()
    assert (table["kind"] == "broadcast").sum() >= 8
    shown = slices(trace, "collective")
    own = [one for one in shown if one["args"]["kind"] == "broadcast"]
    assert len(own) == (table["kind"] == "broadcast").sum()
    assert len(shown) == len(table)
