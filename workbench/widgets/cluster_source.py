"""A cluster's timings, as a live view reads them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.cluster import Cluster
from workbench.resources import Unknown
from workbench.timings import Summary as TimingsSummary
from workbench.timings import Timings, stragglers
from workbench.timings.derive import columns
from workbench.timings.store import Rows, first_of_cell
from workbench.timings.summary import LATEST, UNHEARD, notes, summarize
from workbench.widgets.nominal import NominalRate
from workbench.widgets.source import (
    COLUMNS,
    MOST_COLLECTIVES,
    MOST_STRAGGLERS,
    Details,
    RankPlace,
    State,
    Status,
    Straggler,
    Summary,
    Window,
)

_LOOK_BACK = 8
"""Iterations by which one rank's records may come later than another's."""
_MOST_NEWS = 1 << 15
_STRAGGLER_ITERATIONS = 1000
"""Iterations that stragglers are looked for in, at most: the answer comes at once."""
_ONCE = "one iteration"
"""Single iterations come and go: the view tells of stretches."""
_NOT_YET = "no iteration has ended yet"
_NO_ITERATION = Unknown(_NOT_YET)
_NOT_CALIBRATED = Unknown("cluster.calibrate() measures what this fabric gives")
_NO_COLLECTIVE = Unknown("no single collective is held of these iterations")


class ClusterSource:
    """A `TimingSource` over a cluster; a new start of the cluster is a new run.

    Parameters
    ----------
    cluster
        Whose timings to show.
    """

    _runs = itertools.count(1)

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._timings: Timings | None = None
        self._run = 0
        self._first_start: dict[int, int] = {}
        self._late: dict[tuple[int, str], Straggler] = {}
        self._nominal = NominalRate(cluster)
        self._listeners: list[Callable[[], None]] = []
        self._leave: Callable[[], None] = lambda: None

    def status(self) -> Status:
        """Say what is going on."""
        timings = self._now()
        state = self._state(timings)
        places = tuple(RankPlace(info.rank, info.vm) for info in self._cluster.ranks)
        return Status(self._run, state, self._message(timings, state), places)

    def summary(self) -> Summary:
        """Give the key figures of the newest iterations."""
        timings = self._now()
        newest = timings.rows(len(timings) - 2 * LATEST * self._cluster.n)
        return self._figures(timings, summarize(newest, LATEST))

    def details(self, first: int | None = None, last: int | None = None) -> Details:
        """Say what the iterations `first` to `last` cost; None: the newest."""
        timings = self._now()
        newest = timings.rows(len(timings) - self._cluster.n)["iteration"]
        end = int(newest.max(initial=-1)) if last is None else last
        begin = max(0, end - LATEST + 1) if first is None else first
        totals = timings.collective_totals(begin, end)
        return Details(
            begin if end >= 0 else -1,
            end,
            self._figures(timings, summarize(timings.between(begin, end))),
            totals.collectives[:MOST_COLLECTIVES] or _NO_COLLECTIVE,
            len(totals.collectives),
            totals.first_iteration,
            self._stragglers(timings, begin, end, asked=first is not None),
        )

    def before(self, iteration: int, max_rows: int) -> Window:
        """Give the rows of the iterations before `iteration`, the nearest."""
        timings = self._now()
        first = iteration - max_rows // max(1, self._cluster.n)
        return Window(len(timings), self._data(timings.between(first, iteration - 1)))

    def window(self, max_rows: int) -> Window:
        """Give the newest rows, whole iterations only."""
        timings = self._now()
        total = len(timings)
        first, rows = timings.read(max(0, total - max_rows - self._cluster.n))
        return Window(total, self._data(_whole(rows, max_rows) if first else rows))

    def since(self, cursor: int) -> Window | None:
        """Give the rows received after `cursor`; None where they are of another run."""
        timings = self._now()
        first, rows = timings.read(max(0, cursor - _LOOK_BACK * self._cluster.n))
        total = first + len(rows)
        if not first <= cursor <= total or total - cursor > _MOST_NEWS:
            return None
        # with the rows of other ranks that came before: only whole iterations tell who waited
        news = rows["iteration"][cursor - first :]
        return Window(total, self._data(rows[np.isin(rows["iteration"], news)]))

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when a cell begins or ends or rows come; return how to stop."""
        self._listeners.append(callback)
        self._now()
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    def _now(self) -> Timings:
        timings = self._cluster.timings
        if timings is not self._timings:
            self._timings = timings
            self._run = next(self._runs)
            self._first_start = {}
            self._late = {}
            self._nominal = NominalRate(self._cluster)
            self._leave()
            self._leave = timings.subscribe(self._tell)
        return timings

    def _tell(self) -> None:
        for listener in tuple(self._listeners):
            listener()

    def _figures(self, timings: Timings, found: TimingsSummary) -> Summary:
        behind = Unknown("no rank arrives last throughout")
        if found.ranks < 2:
            behind = Unknown("one rank waits for nobody")
        slow, excess = found.slowest_rank, found.slowest_excess_us
        silent = UNHEARD if found.unheard else "no gradients were reduced between ranks"
        fabric = self._cluster.fabric
        return Summary(
            iteration=found.iteration if found.iteration >= 0 else _NO_ITERATION,
            iterations_per_s=_known(found.iterations_per_s),
            iteration_us=_known(found.iteration_us),
            exposed_us=_known(found.exposed_us, UNHEARD if found.unheard else _NOT_YET),
            exposed_share=_known(found.exposed_share, UNHEARD if found.unheard else _NOT_YET),
            busbw_gbps=_known(found.busbw_gbps, silent),
            nominal_gbps=self._nominal.get(),
            calibrated_gbps=self._calibrated(found),
            calibrated_error=_NOT_CALIBRATED if fabric is None else fabric.error,
            slowest_rank=behind if slow is None else slow,
            slowest_excess_us=behind if excess is None else excess,
            dropped=timings.dropped,
            notes=notes(found),
        )

    def _calibrated(self, found: TimingsSummary) -> float | Unknown:
        fabric = self._cluster.fabric
        if fabric is None:
            return _NOT_CALIBRATED
        if not fabric.reliable:
            return Unknown(fabric.caveat)
        if fabric.n != self._cluster.n:
            return Unknown(f"calibrated on {fabric.n} ranks: cluster.calibrate() does it anew")
        # as one allreduce: what is exposed or hidden, all of it is under way
        size, n = found.bytes, fabric.n
        us = fabric.predict_us(size)
        if not size or us <= 0:
            return Unknown("no gradients were reduced between ranks")
        return size * 8 / (us * 1e3) * 2 * (n - 1) / n

    def _stragglers(
        self, timings: Timings, first: int, last: int, *, asked: bool
    ) -> tuple[Straggler, ...]:
        """Return who was late in a stretch; of the newest, with what was seen of them before."""
        rows = timings.between(max(first, last - _STRAGGLER_ITERATIONS), last)
        found = [_straggler(row) for row in stragglers.find(rows) if row["how_often"] != _ONCE]
        if not asked:
            found = [self._since(one) for one in found]
            self._late = {(one.rank, one.phase): one for one in found}
        return tuple(sorted(found, key=lambda one: -one.last_iteration)[:MOST_STRAGGLERS])

    def _since(self, late: Straggler) -> Straggler:
        """Return a stretch with its true begin, where it was seen to begin earlier."""
        before = self._late.get((late.rank, late.phase))
        if before is None or before.last_iteration < late.first_iteration - 1:
            return late
        return replace(late, first_iteration=min(late.first_iteration, before.first_iteration))

    def _state(self, timings: Timings) -> State:
        if not len(timings):
            return "waiting"
        return "running" if timings.running else "ended"

    def _message(self, timings: Timings, state: State) -> str:
        if state == "waiting":
            if timings.closed:
                return "The cluster was stopped before a training cell ran."
            if timings.remark:
                return timings.remark
            return "Waiting for the first iteration of a %%distributed cell."
        if state == "running":
            return f"Training. {UNHEARD}." if timings.unheard else "Training."
        ended = "The cluster was stopped." if timings.closed else "The cell has ended."
        return f"{ended} {timings.remark}".strip()

    def _data(self, rows: Rows) -> NDArray[np.float32]:
        rows = rows[np.lexsort((rows["rank"], rows["iteration"]))]
        for row in rows:
            self._first_start.setdefault(int(row["rank"]), int(row["start_ns"]))
        table = columns(rows)
        table.setdefault("copy_us", np.zeros(len(rows)))
        hidden = rows["overlapped_ns"] / 1e3
        table["overlapped_us"] = np.where(np.isnan(table["exposed_us"]), np.nan, hidden)
        table["first"] = first_of_cell(rows)
        begins = np.array([self._first_start[int(rank)] for rank in rows["rank"]], dtype=np.int64)
        # each rank by its own clock: those of two VMs do not agree
        table["end_s"] = (rows["start_ns"] + rows["iteration_ns"] - begins) / 1e9
        return np.array([table[name] for name in COLUMNS], dtype=np.float32).reshape(
            len(COLUMNS), len(rows)
        )


def _whole(rows: Rows, most: int) -> Rows:
    """Return the newest iterations, `most` rows of them, from one that all ranks have reported.

    Rows come in the order of their arrival, some of a rank together: of the
    oldest iterations another rank's may not be among them.
    """
    numbers, start, counts = np.unique(rows["iteration"], return_index=True, return_counts=True)
    left = np.cumsum(counts[::-1])[::-1]
    begins = numbers[(counts >= rows["world_size"][start]) & (left <= most)]
    if len(begins):
        return np.asarray(rows[rows["iteration"] >= begins[0]])
    return np.asarray(rows[rows["iteration"] >= np.sort(rows["iteration"])[-most:][0]])


def _known(value: float, why: str = _NOT_YET) -> float | Unknown:
    return Unknown(why) if math.isnan(value) else value


def _straggler(row: dict[str, Any]) -> Straggler:
    """Return what the view tells."""
    return Straggler(**{field.name: row[field.name] for field in fields(Straggler)})
