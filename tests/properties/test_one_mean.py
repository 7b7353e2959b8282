"""Every place shows the same mean of a figure, over the same iterations."""

import contextlib
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import MS
from timers import eventually

import workbench as wb
from workbench.resources import Unknown
from workbench.resources.process_registry import FOLDER, ProcessRegistry
from workbench.timings import Timings
from workbench.timings.compare import compare
from workbench.timings.export.publish import Publisher
from workbench.timings.figures import FIRST, PROFILED, typical, untypical
from workbench.timings.store import Store
from workbench.timings.summary import summarize
from workbench.widgets.cluster_source import ClusterSource
from workbench.widgets.grid import Grid, rank_means
from workbench.widgets.grid import typical as typical_window
from workbench.widgets.source import TimingsReading
from workbench.widgets.tables import summary_line, summary_text
from workbench.wire import Flag, IterationRecord

SHOWN = ("iteration_us", "exposed_us", "communication_us", "algbw_gbps", "busbw_gbps")


def record(index, forward_ms, exposed_ms, size_bytes, flags):
    """An iteration of one rank; its communication is exposed."""
    total = (forward_ms + exposed_ms) * MS
    return IterationRecord(
        1, index, index * 1000 * MS, total, data_ns=0, copy_ns=0, forward_ns=forward_ms * MS,
        backward_ns=0, exposed_ns=exposed_ms * MS, optimizer_ns=0, other_ns=0,
        communication_ns=exposed_ms * MS, overlapped_ns=0, size_bytes=size_bytes, tensors=1,
        world_size=2, flags=flags,
    )  # fmt: skip


@st.composite
def runs(draw):
    """The records of two ranks, by rank; some iterations were profiled on one of them."""
    count = draw(st.integers(1, 8))
    milliseconds = st.integers(1, 50)
    ranks = {}
    for rank in (0, 1):
        ranks[rank] = []
        for index in range(count):
            flags = Flag.NONE if index else Flag.FIRST_OF_CELL
            if draw(st.booleans()) and draw(st.booleans()):
                flags |= Flag.PROFILED
            times = draw(milliseconds), draw(milliseconds)
            ranks[rank].append(record(index, *times, draw(st.integers(1, 10**8)), flags))
    return ranks


def rows_of(ranks):
    store = Store()
    for iterations in zip(*ranks.values(), strict=True):
        for rank, iteration in zip(ranks, iterations, strict=True):
            store.add(rank, iteration)
    return store.rows()


class StoredTimings(Timings):
    """Timings that have received the records of a run."""

    def __init__(self, ranks):
        super().__init__()
        self.vms = dict.fromkeys(ranks, "vm1")
        for iterations in zip(*ranks.values(), strict=True):
            for rank, iteration in zip(ranks, iterations, strict=True):
                self._store.add(rank, iteration)


@contextlib.contextmanager
def live_source(ranks):
    """The source of a live view of a run."""
    timings = StoredTimings(ranks)
    places = [SimpleNamespace(rank=rank, vm="vm1", gpu="CPU", nic="lo") for rank in ranks]
    idle = {
        "state": "ready",
        "message": "",
        "profiling": SimpleNamespace(state="none", latest=None),
    }
    try:
        yield ClusterSource(
            SimpleNamespace(timings=timings, ranks=places, n=2, fabric=None, **idle)
        )
    finally:
        timings.close()


def same(shown, expected):
    """Whether a figure is the expected number, or unknown if that is NaN."""
    if isinstance(shown, Unknown) or math.isnan(shown):
        return math.isnan(expected)
    return shown == pytest.approx(expected, rel=1e-5)


@given(runs())
def test_every_place_shows_the_same_means(ranks):
    """The summary, the tables, the live view, a comparison and a verdict."""
    rows, summary = rows_of(ranks), summarize(rows_of(ranks))
    with live_source(ranks) as source:
        reading = TimingsReading.take(source, len(rows))
    window, _ = typical_window(reading.window)
    _, shown_in_tables = rank_means(Grid(window, [0, 1]), list(SHOWN))
    compared = {row.figure: row.a for row in compare(rows, rows, ("a", "b")).differences}
    for name in SHOWN:
        assert same(shown_in_tables[name], getattr(summary, name)), name
        assert same(compared[name], getattr(summary, name)), name
    for name in ("iteration_us", "exposed_us", "busbw_gbps", "first_iteration", "last_iteration"):
        assert same(getattr(reading.summary, name), getattr(summary, name)), name
        assert same(getattr(reading.details.summary, name), getattr(summary, name)), name
    verdict = wb.verdict(StoredTimings(ranks))
    assert same(verdict.iteration_us, summary.iteration_us)


@given(runs())
def test_every_place_names_the_same_iterations(ranks):
    """In the same words: the text line, the table and the verdict."""
    summary = summarize(rows_of(ranks))
    with live_source(ranks) as source:
        reading = TimingsReading.take(source, 100)
    assert f"Timings: {summary.scope}: " in summary_line(reading)
    assert f"Mean of {summary.scope}; " in summary_text(reading)
    verdict = wb.verdict(StoredTimings(ranks))
    assert f"({summary.scope})" in verdict.text


@given(runs())
def test_typical_iterations(ranks):
    """Neither first nor profiled ones; if there are no such ones, profiled ones, or all."""
    rows = rows_of(ranks)
    reasons = untypical(rows)
    profiled = {
        iteration.index
        for records in ranks.values()
        for iteration in records
        if iteration.flags & Flag.PROFILED
    }
    usual = set(rows["iteration"].tolist()) - profiled - {0}
    expected = usual or set(rows["iteration"].tolist()) - {0} or {0}
    assert set(typical(rows)["iteration"].tolist()) == expected
    assert set(rows["iteration"][reasons == FIRST].tolist()) == {0}
    assert set(rows["iteration"][reasons == PROFILED].tolist()) == profiled - {0}


def test_prometheus_shows_typical_iterations(tmp_path, monkeypatch):
    """After a profile, it once showed twice the mean of the summary."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    slow = Flag.PROFILED
    ranks = {
        0: [record(0, 90, 10, 1000, Flag.FIRST_OF_CELL)]
        + [record(at, 10, 10, 10**6, slow if at > 5 else Flag.NONE) for at in range(1, 10)],
        1: [record(0, 90, 10, 1000, Flag.FIRST_OF_CELL)]
        + [record(at, 60 if at > 5 else 10, 30, 10**6, Flag.NONE) for at in range(1, 10)],
    }
    rows, timings = rows_of(ranks), StoredTimings(ranks)
    publisher = Publisher(timings, "c")
    try:
        timings.begin_cell(2)
        timings.end_cell(2, {})
        entries = eventually(lambda: [entry for entry in all_of(tmp_path) if entry.get("ranks")])
    finally:
        publisher.close()
        timings.close()
    for published in entries[0]["ranks"]:
        summary = summarize(
            rows[np.isin(rows["iteration"], range(6)) & (rows["rank"] == published["rank"])]
        )
        latest = published["latest"]
        assert latest["iteration_s"] == pytest.approx(summary.iteration_us / 1e6)
        assert latest["exposed_share"] == pytest.approx(summary.exposed_share)
        assert latest["busbw_gbps"] == pytest.approx(summary.busbw_gbps)


def all_of(folder):
    """The entries of all registries in a folder."""
    return [
        entry for registry in folder.rglob(FOLDER) for entry in ProcessRegistry(registry).read()
    ]


def test_the_bandwidth_of_all_ranks_is_all_bytes_over_all_time():
    """A rank whose communication takes three times as long counts three times."""
    ranks = {
        0: [record(at, 10, 10, 10**6, Flag.NONE) for at in range(4)],
        1: [record(at, 10, 30, 10**6, Flag.NONE) for at in range(4)],
    }
    with live_source(ranks) as source:
        reading = TimingsReading.take(source, 100)
    _, means = rank_means(Grid(typical_window(reading.window)[0], [0, 1]), ["busbw_gbps"])
    assert means["busbw_gbps"] == pytest.approx(2 * 8e6 / 40e6, rel=1e-5)
    assert summarize(rows_of(ranks)).busbw_gbps == pytest.approx(2 * 8e6 / 40e6)
