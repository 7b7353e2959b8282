"""The timings of a cluster as a `TimingSource`."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.cluster import Cluster
from workbench.errors import WorkbenchError
from workbench.resources import Unknown
from workbench.timings import Timings, stragglers
from workbench.timings.derive import columns
from workbench.timings.figures import typical, untypical
from workbench.timings.progress import RunningTotals
from workbench.timings.store import Rows
from workbench.timings.summary import LATEST, UNHEARD, summarize
from workbench.timings.verdict import Verdict
from workbench.widgets import earlier_runs
from workbench.widgets.earlier_runs import EarlierRun
from workbench.widgets.key_figures import NO_ITERATION, key_figures
from workbench.widgets.nominal import NominalRate
from workbench.widgets.profiles import profile_file, profile_text
from workbench.widgets.source import (
    COLUMNS,
    MAX_COLLECTIVES,
    MAX_STRAGGLERS,
    Details,
    KeyFigures,
    RankPlace,
    RowWindow,
    State,
    Status,
    StragglerEntry,
)
from workbench.widgets.stages import stage_entries

_OVERLAP_ITERATIONS = 8
"""By how many iterations the records of one rank may arrive after those of another."""
_MAX_NEW_ROWS = 1 << 15
_STRAGGLER_ITERATIONS = 1000
"""Most iterations that are searched for stragglers, so that the search stays fast."""
_FIGURE_ROWS = 1 << 17
_LEAST_ITERATIONS = 10
"""Figures are about fewer iterations where these have more rows, so that the view is not late."""
_ONCE = "one iteration"
"""`how_often` of a straggler that the view omits, because it shows only lasting ones."""
_LAG_STEPS_S = (1, 2, 5, 10, 20, 60, 120, 300)
"""Each change of the message is sent to the view, so it must not change often."""
_NO_COLLECTIVE = Unknown("no single collective is stored for these iterations")


def _message(timings: Timings, state: State) -> str:
    if state == "waiting":
        if timings.closed:
            return "The cluster was stopped before a training cell ran."
        if timings.unrecorded:
            return timings.unrecorded
        if timings.remark:
            return timings.remark
        return (
            "Waiting for the first iteration of a %%distributed cell: no optimizer has stepped yet."
        )
    if state == "running":
        unheard = f"{UNHEARD}." if timings.unheard else ""
        notes = (_lag_text(timings.lag_s), unheard, timings.unrecorded)
        return " ".join(filter(None, ("Training.", *notes)))
    ended = "The cluster was stopped." if timings.closed else "The cell has ended."
    if timings.unrecorded:  # the remark may be about an earlier cell
        return timings.unrecorded if not timings.closed else f"{ended} {timings.unrecorded}"
    return f"{ended} {timings.remark}".strip()


class ClusterSource:
    """The timings of a cluster as a `TimingSource`; each start of the cluster is a new run."""

    _runs = itertools.count(1)

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._timings: Timings | None = None
        self._run = 0
        self._first_start: dict[int, int] = {}
        self._late: list[StragglerEntry] = []
        self._so_far, self._counted = RunningTotals(), 0
        self._changing = threading.Lock()
        """Held while what is known of a run is changed, since several threads read the timings."""
        self._nominal = NominalRate(cluster)
        self._listeners: list[Callable[[], None]] = []
        self._unsubscribe: Callable[[], None] = lambda: None

    def status(self) -> Status:
        """Return the run's state."""
        timings = self._current()
        state = self._state(timings)
        places = tuple(RankPlace(info.rank, info.vm) for info in self._cluster.ranks)
        message = self._at_prompt() or _message(timings, state)
        verdict = timings.verdict if state == "ended" else None
        if verdict is not None and verdict.cell != timings.newest_cell:
            verdict = None  # of an earlier cell
        profile = profile_text(self._cluster)
        return Status(
            self._run,
            state,
            message,
            places,
            timings.unrecorded,
            verdict,
            profile,
            timings.logged_store.names[:2],
            profile_file(self._cluster),
        )

    def profile(self, seconds: float) -> str:
        """Profile the ranks for some seconds; return why that cannot be, or an empty text."""
        try:
            self._cluster.profile(seconds)
        except WorkbenchError as error:
            return str(error)
        self._notify()
        return ""

    def _at_prompt(self) -> str:
        """Return what a running cell waits for, such as a rank at a breakpoint; usually nothing."""
        running = self._cluster.state == "running"
        return f"{self._cluster.message}." if running and self._cluster.message else ""

    def explain(self) -> Verdict | Unknown:
        """Return what slows down the newest iterations of the last cell, or why it is unknown."""
        from workbench.advisor import verdict

        try:
            return verdict(self._cluster)
        except WorkbenchError as error:
            return Unknown(str(error))
        except Exception as error:  # noqa: BLE001 - the page waits for an answer
            return Unknown(f"{type(error).__name__}: {error}")

    def earlier_runs(self) -> tuple[str, ...]:
        """Return the names of stored runs, the newest first, without the current one."""
        return earlier_runs.earlier_runs(self._current().path)

    def earlier_run(self, name: str) -> EarlierRun | Unknown:
        """Return the iteration times of a stored run, or why they are unknown."""
        try:
            return earlier_runs.earlier_run(name)
        except Exception as error:  # noqa: BLE001 - the page waits for an answer
            return Unknown(f"{type(error).__name__}: {error}")

    def summary(self) -> KeyFigures:
        """Return the key figures of the newest iterations."""
        timings = self._current()
        latest = self._most_iterations(LATEST)
        newest = timings.rows(len(timings) - 2 * latest * self._cluster.n)
        figures = key_figures(self._cluster, timings, self._nominal, summarize(newest, latest))
        return replace(figures, progress=self._progress(timings, newest))

    def _progress(self, timings: Timings, newest: Rows) -> str | Unknown:
        """Return how far the training is; reads only rows that have arrived since the last call."""
        with self._changing:
            if timings is not self._timings:  # another thread has seen the start of a new run
                return NO_ITERATION
            while self._counted < len(timings):
                end = self._counted + _MAX_NEW_ROWS
                first, rows = timings.read(self._counted, end, aligned=False)
                self._counted = first + len(rows)
                self._so_far.add(rows)
            return str(self._so_far.progress(typical(newest))) if self._counted else NO_ITERATION

    def details(self, first: int | None = None, last: int | None = None) -> Details:
        """Return what the iterations `first` to `last` cost; None means the newest."""
        timings = self._current()
        newest = timings.rows(len(timings) - self._cluster.n)["iteration"]
        end = int(newest.max(initial=-1)) if last is None else last
        begin = max(0, end - self._most_iterations(LATEST) + 1) if first is None else first
        totals = timings.collective_totals(begin, end)
        return Details(
            begin if end >= 0 else -1,
            end,
            key_figures(
                self._cluster, timings, self._nominal, summarize(timings.between(begin, end))
            ),
            totals.collectives[:MAX_COLLECTIVES] or _NO_COLLECTIVE,
            len(totals.collectives),
            totals.first_iteration,
            self._stragglers(timings, begin, end, selected=first is not None),
            stage_entries(timings, begin, end),
        )

    def _most_iterations(self, most: int) -> int:
        """Return how many iterations figures are about: `most`, or fewer with many ranks."""
        return max(_LEAST_ITERATIONS, min(most, _FIGURE_ROWS // max(1, self._cluster.n)))

    def before(self, iteration: int, max_rows: int) -> RowWindow:
        """Return the rows of the iterations nearest before `iteration`."""
        timings = self._current()
        first = iteration - max_rows // max(1, self._cluster.n)
        return RowWindow(len(timings), self._data(timings, timings.between(first, iteration - 1)))

    def window(self, max_rows: int) -> RowWindow:
        """Return the newest rows, of complete iterations only."""
        timings = self._current()
        total = len(timings)
        first, rows = timings.read(max(0, total - max_rows - self._cluster.n))
        shown = _complete(rows, max_rows) if first else rows
        return RowWindow(total, self._data(timings, shown))

    def since(self, cursor: int) -> RowWindow | None:
        """Return the rows received after `cursor`; None if they belong to another run."""
        timings = self._current()
        first, rows = timings.read(max(0, cursor - _OVERLAP_ITERATIONS * self._cluster.n))
        total = first + len(rows)
        if not first <= cursor <= total or total - cursor > _MAX_NEW_ROWS:
            return None
        # Include earlier rows of other ranks: waiting times need all ranks of an iteration.
        news = rows["iteration"][cursor - first :]
        return RowWindow(total, self._data(timings, rows[np.isin(rows["iteration"], news)]))

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when a cell begins or ends or rows arrive; return an unsubscriber."""
        self._listeners.append(callback)
        self._current()
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    def _current(self) -> Timings:
        timings = self._cluster.timings
        if timings is self._timings:
            return timings
        with self._changing:
            timings = self._cluster.timings
            if timings is not self._timings:  # otherwise another thread has changed the run
                self._run = next(self._runs)
                self._first_start = {}
                self._late = []
                self._so_far, self._counted = RunningTotals(), 0
                self._nominal = NominalRate(self._cluster)
                self._unsubscribe()
                self._unsubscribe = timings.subscribe(self._notify)
                self._timings = timings  # last, since other threads compare it without the lock
            return timings

    def _notify(self) -> None:
        for listener in tuple(self._listeners):
            listener()

    def _stragglers(
        self, timings: Timings, first: int, last: int, *, selected: bool
    ) -> tuple[StragglerEntry, ...]:
        """Return the late ranks; for the newest iterations with their start as seen earlier."""
        rows = timings.between(
            max(first, last - self._most_iterations(_STRAGGLER_ITERATIONS)), last
        )
        found = [_straggler(row) for row in stragglers.find(rows) if row["how_often"] != _ONCE]
        if not selected:
            with self._changing:
                if timings is self._timings:  # otherwise they would be those of the new run
                    found = [self._extended(one) for one in found]
                    self._late = found
        return tuple(sorted(found, key=lambda one: -one.last_iteration)[:MAX_STRAGGLERS])

    def _extended(self, late: StragglerEntry) -> StragglerEntry:
        """Return a straggler with an earlier first iteration if it was already late before."""
        first = late.first_iteration
        before = [
            one.first_iteration
            for one in self._late
            if (one.rank, one.phase) == (late.rank, late.phase)
            and one.first_iteration <= first <= one.last_iteration
        ]
        return replace(late, first_iteration=min(before, default=first))

    def _state(self, timings: Timings) -> State:
        if not len(timings):
            return "waiting"
        return "running" if timings.running else "ended"

    def _first_starts(self, timings: Timings) -> dict[int, int]:
        """Return when each rank began; an empty dict if another thread has begun a new run."""
        with self._changing:
            return self._first_start if timings is self._timings else {}

    def _data(self, timings: Timings, rows: Rows) -> NDArray[np.float32]:
        rows = rows[np.lexsort((rows["rank"], rows["iteration"]))]
        ranks, first = np.unique(rows["rank"], return_index=True)
        first_start = self._first_starts(timings)
        oldest = zip(ranks.tolist(), rows["start_ns"][first].tolist(), strict=True)
        starts = np.array([first_start.setdefault(rank, start) for rank, start in oldest], np.int64)
        table = columns(rows)
        hidden = rows["overlapped_ns"] / 1e3
        table["overlapped_us"] = np.where(np.isnan(table["exposed_us"]), np.nan, hidden)
        table["left_out"] = untypical(rows)
        table |= _logged(timings, rows)
        begins = starts[np.searchsorted(ranks, rows["rank"])]
        # Each rank by its own clock, because the clocks of VMs differ.
        table["end_s"] = (rows["start_ns"] + rows["iteration_ns"] - begins) / 1e9
        return np.array([table[name] for name in COLUMNS], dtype=np.float32).reshape(
            len(COLUMNS), len(rows)
        )


def _complete(rows: Rows, most: int) -> Rows:
    """Return the newest iterations, at most `most` rows, from the first complete one on.

    Rows are in order of arrival, and a rank sends several at a time: rows of the oldest
    iterations may be missing for some ranks.
    """
    numbers, start, counts = np.unique(rows["iteration"], return_index=True, return_counts=True)
    left = np.cumsum(counts[::-1])[::-1]
    begins = numbers[(counts >= rows["world_size"][start]) & (left <= most)]
    if len(begins):
        return np.asarray(rows[rows["iteration"] >= begins[0]])
    return np.asarray(rows[rows["iteration"] >= np.sort(rows["iteration"])[-most:][0]])


def _logged(timings: Timings, rows: Rows) -> dict[str, NDArray[np.float64]]:
    """Return the first two values that were logged with rows; infinite if they are not finite."""
    logged = timings.logged_store.since(int(rows["iteration"].min(initial=1 << 62)))
    values = logged.values
    values["value"][~np.isfinite(values["value"])] = np.inf
    found = iter(logged.columns(rows["iteration"], rows["rank"]).values())
    none = np.full(len(rows), np.nan)
    return {name: next(found, none) for name in ("logged_0", "logged_1")}


def _lag_text(lag_s: float) -> str:
    """Return by how much the figures are late, in one of a few steps; empty up to 1 s."""
    step = max((step for step in _LAG_STEPS_S if lag_s > step), default=0)
    return f"The figures are more than {step} s behind the ranks." if step else ""


def _straggler(row: dict[str, Any]) -> StragglerEntry:
    """Return the fields of a straggler that the view shows."""
    return StragglerEntry(**{field.name: row[field.name] for field in fields(StragglerEntry)})
