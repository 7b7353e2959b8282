"""The timings of a cluster as a `TimingSource`."""

from __future__ import annotations

import itertools
import logging
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

_log = logging.getLogger(__name__)

_OVERLAP_ITERATIONS = 8
"""The records of one rank may arrive this many iterations after those of another."""
_MAX_NEW_ROWS = 1 << 15
"""Limit of the rows that `ClusterSource.since` returns, and of the rows that are read at a time."""
_MAX_STRAGGLER_ITERATIONS = 1000
"""Limit of the iterations that are searched for stragglers, so that the search stays fast."""
_MAX_FIGURE_ROWS = 1 << 17
"""Limit of the rows that figures are computed from. With more, the view would be late."""
_MIN_ITERATIONS = 10
"""Figures cover at least this many iterations, even if they have more than `_MAX_FIGURE_ROWS`."""
_ONCE = "one iteration"
"""`how_often` of a straggler that the view omits, because it shows only lasting ones."""
_LAG_STEPS_S = (1, 2, 5, 10, 20, 60, 120, 300)
"""The lags that a message can mention.

The view receives each change of the message, so the message must not change often.
"""
_NO_COLLECTIVE = Unknown("no single collective is stored for these iterations")


def _message(timings: Timings, state: State) -> str:
    """Return one line for the user: what the view waits for, or how the run ended."""
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
        self._first_start_ns: dict[int, int] = {}
        self._lasting_stragglers: list[StragglerEntry] = []
        self._running_totals = RunningTotals()
        self._rows_totalled = 0
        self._run_lock = threading.Lock()
        """Held while the state of a run changes, because several threads read the timings."""
        self._nominal = NominalRate(cluster)
        self._listeners: list[Callable[[], None]] = []
        self._unsubscribe: Callable[[], None] = lambda: None

    def status(self) -> Status:
        """Return the run's state."""
        timings = self._current()
        state = self._state(timings)
        places = tuple(RankPlace(info.rank, info.vm) for info in self._cluster.ranks)
        message = self._wait_message() or _message(timings, state)
        verdict = timings.verdict if state == "ended" else None
        if verdict is not None and verdict.cell != timings.newest_cell:
            verdict = None  # the verdict belongs to an earlier cell
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
        """Profile the ranks for some seconds; return why this is impossible, or an empty text."""
        try:
            self._cluster.profile(seconds)
        except WorkbenchError as error:
            return str(error)
        self._notify()
        return ""

    def _wait_message(self) -> str:
        """Return what the running cell waits for, such as a rank at a breakpoint; usually empty."""
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
        """Return the names of stored runs, the newest first, without the current run."""
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
        max_iterations = self._iteration_limit(LATEST)
        newest = timings.rows(len(timings) - 2 * max_iterations * self._cluster.n)
        figures = key_figures(
            self._cluster, timings, self._nominal, summarize(newest, max_iterations)
        )
        return replace(figures, progress=self._progress(timings, newest))

    def _progress(self, timings: Timings, newest: Rows) -> str | Unknown:
        """Return the progress of the training; read only rows that arrived after the last call."""
        with self._run_lock:
            if timings is not self._timings:  # another thread has seen the start of a new run
                return NO_ITERATION
            while self._rows_totalled < len(timings):
                end = self._rows_totalled + _MAX_NEW_ROWS
                first, rows = timings.read(self._rows_totalled, end, aligned=False)
                self._rows_totalled = first + len(rows)
                self._running_totals.add(rows)
            return (
                str(self._running_totals.progress(typical(newest)))
                if self._rows_totalled
                else NO_ITERATION
            )

    def details(self, first: int | None = None, last: int | None = None) -> Details:
        """Return the cost of the iterations `first` to `last`, by default the newest `LATEST`.

        With many ranks, the default range has fewer iterations.
        """
        timings = self._current()
        newest = timings.rows(len(timings) - self._cluster.n)["iteration"]
        end = int(newest.max(initial=-1)) if last is None else last
        begin = max(0, end - self._iteration_limit(LATEST) + 1) if first is None else first
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

    def _iteration_limit(self, max_iterations: int) -> int:
        """Return how many iterations figures cover: `max_iterations`, fewer with many ranks."""
        return max(
            _MIN_ITERATIONS, min(max_iterations, _MAX_FIGURE_ROWS // max(1, self._cluster.n))
        )

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
        """Return the rows after `cursor`; None if they are too many or belong to another run."""
        timings = self._current()
        first, rows = timings.read(max(0, cursor - _OVERLAP_ITERATIONS * self._cluster.n))
        total = first + len(rows)
        if not first <= cursor <= total or total - cursor > _MAX_NEW_ROWS:
            return None
        # Include earlier rows of other ranks: waiting times need all ranks of an iteration.
        new_iterations = rows["iteration"][cursor - first :]
        return RowWindow(
            total, self._data(timings, rows[np.isin(rows["iteration"], new_iterations)])
        )

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when a cell begins or ends or rows arrive; return an unsubscriber."""
        self._listeners.append(callback)
        self._current()
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    def _current(self) -> Timings:
        timings = self._cluster.timings
        if timings is self._timings:
            return timings
        with self._run_lock:
            timings = self._cluster.timings
            if timings is not self._timings:  # otherwise, another thread has changed the run
                self._run = next(self._runs)
                self._first_start_ns = {}
                self._lasting_stragglers = []
                self._running_totals = RunningTotals()
                self._rows_totalled = 0
                self._nominal = NominalRate(self._cluster)
                self._unsubscribe()
                self._unsubscribe = timings.subscribe(self._notify)
                # Assigned last, because other threads compare it without the lock.
                self._timings = timings
                _log.debug("timings: run %d begins", self._run)
            return timings

    def _notify(self) -> None:
        for listener in tuple(self._listeners):
            listener()

    def _stragglers(
        self, timings: Timings, first: int, last: int, *, selected: bool
    ) -> tuple[StragglerEntry, ...]:
        """Return the stragglers of a range of iterations.

        If the range is not `selected` by the user, it ends with the newest iteration. Then a
        straggler keeps the first iteration in which an earlier call found it.
        """
        rows = timings.between(
            max(first, last - self._iteration_limit(_MAX_STRAGGLER_ITERATIONS)), last
        )
        lasting = [_straggler(row) for row in stragglers.find(rows) if row["how_often"] != _ONCE]
        if not selected:
            with self._run_lock:
                if timings is self._timings:  # otherwise, the stored stragglers are the new run's
                    lasting = [self._extended(straggler) for straggler in lasting]
                    self._lasting_stragglers = lasting
        return tuple(
            sorted(lasting, key=lambda straggler: -straggler.last_iteration)[:MAX_STRAGGLERS]
        )

    def _extended(self, straggler: StragglerEntry) -> StragglerEntry:
        """Return a straggler with the first iteration in which an earlier call found it, if any."""
        first = straggler.first_iteration
        earlier_firsts = [
            earlier.first_iteration
            for earlier in self._lasting_stragglers
            if (earlier.rank, earlier.phase) == (straggler.rank, straggler.phase)
            and earlier.first_iteration <= first <= earlier.last_iteration
        ]
        return replace(straggler, first_iteration=min(earlier_firsts, default=first))

    def _state(self, timings: Timings) -> State:
        if not len(timings):
            return "waiting"
        return "running" if timings.running else "ended"

    def _first_starts_by_rank(self, timings: Timings) -> dict[int, int]:
        """Return the start in ns of each rank's first iteration, by rank.

        The dict is empty if another thread has begun a new run.
        """
        with self._run_lock:
            return self._first_start_ns if timings is self._timings else {}

    def _data(self, timings: Timings, rows: Rows) -> NDArray[np.float32]:
        """Return the values of `COLUMNS` for rows, ordered by iteration, then rank."""
        rows = rows[np.lexsort((rows["rank"], rows["iteration"]))]
        ranks, first = np.unique(rows["rank"], return_index=True)
        first_start_ns = self._first_starts_by_rank(timings)
        rank_starts = zip(ranks.tolist(), rows["start_ns"][first].tolist(), strict=True)
        first_starts_ns = np.array(
            [first_start_ns.setdefault(rank, start) for rank, start in rank_starts], np.int64
        )
        table = columns(rows)
        overlapped_us = rows["overlapped_ns"] / 1e3
        table["overlapped_us"] = np.where(np.isnan(table["exposed_us"]), np.nan, overlapped_us)
        table["left_out"] = untypical(rows)
        table |= _logged(timings, rows)
        row_first_starts_ns = first_starts_ns[np.searchsorted(ranks, rows["rank"])]
        # The end of each rank is relative to its own start, because the clocks of VMs differ.
        table["end_s"] = (rows["start_ns"] + rows["iteration_ns"] - row_first_starts_ns) / 1e9
        return np.array([table[name] for name in COLUMNS], dtype=np.float32).reshape(
            len(COLUMNS), len(rows)
        )


def _complete(rows: Rows, max_rows: int) -> Rows:
    """Return the newest iterations, at most `max_rows` rows, beginning with a complete iteration.

    Rows are in order of arrival, and a rank sends several at a time. So rows of the oldest
    iterations may be missing for some ranks.
    """
    iterations, first_rows, counts = np.unique(
        rows["iteration"], return_index=True, return_counts=True
    )
    rows_from_iteration = np.cumsum(counts[::-1])[::-1]
    complete_iterations = iterations[
        (counts >= rows["world_size"][first_rows]) & (rows_from_iteration <= max_rows)
    ]
    if len(complete_iterations):
        return np.asarray(rows[rows["iteration"] >= complete_iterations[0]])
    return np.asarray(rows[rows["iteration"] >= np.sort(rows["iteration"])[-max_rows:][0]])


def _logged(timings: Timings, rows: Rows) -> dict[str, NDArray[np.float64]]:
    """Return the first two values logged with rows; a value that is not finite becomes infinity."""
    logged = timings.logged_store.since(int(rows["iteration"].min(initial=1 << 62)))
    values = logged.values
    values["value"][~np.isfinite(values["value"])] = np.inf
    logged_columns = iter(logged.columns(rows["iteration"], rows["rank"]).values())
    missing = np.full(len(rows), np.nan)
    return {name: next(logged_columns, missing) for name in ("logged_0", "logged_1")}


def _lag_text(lag_s: float) -> str:
    """Return a sentence about the lag of the figures, in a few steps; empty up to 1 s."""
    step = max((step for step in _LAG_STEPS_S if lag_s > step), default=0)
    return f"The figures are more than {step} s behind the ranks." if step else ""


def _straggler(row: dict[str, Any]) -> StragglerEntry:
    """Return the fields of a straggler that the view shows."""
    return StragglerEntry(**{field.name: row[field.name] for field in fields(StragglerEntry)})
