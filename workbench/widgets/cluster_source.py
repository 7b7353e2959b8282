"""A cluster's timings, as a live view reads them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from workbench.cluster import Cluster
from workbench.resources import Unknown
from workbench.timings import Timings
from workbench.timings.derive import columns
from workbench.timings.store import Rows
from workbench.timings.summary import LATEST, summarize
from workbench.widgets.source import COLUMNS, RankPlace, State, Status, Summary, Window

_NO_LINK = Unknown("the ranks share one machine: no link between them has a nominal rate")
_LOOK_BACK = 8
"""Iterations by which one rank's records may come later than another's."""
_MOST_NEWS = 1 << 15
_NO_ITERATION = Unknown("no iteration has ended yet")


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
        found = summarize(newest, LATEST)
        behind = Unknown("no rank arrives last throughout")
        if found.ranks < 2:
            behind = Unknown("one rank waits for nobody")
        slow = found.slowest_rank
        return Summary(
            iteration=found.iteration if found.iteration >= 0 else _NO_ITERATION,
            iterations_per_s=_known(found.iterations_per_s),
            iteration_us=_known(found.iteration_us),
            exposed_us=_known(found.exposed_us),
            exposed_share=_known(found.exposed_share),
            busbw_gbps=_known(found.busbw_gbps, "no gradients were reduced between ranks"),
            nominal_gbps=_NO_LINK,
            slowest_rank=behind if slow is None else slow,
            slowest_excess_us=behind
            if found.slowest_excess_us is None
            else found.slowest_excess_us,
            dropped=timings.dropped,
        )

    def window(self, max_rows: int) -> Window:
        """Give the newest rows, whole iterations only."""
        timings = self._now()
        total = len(timings)
        rows = timings.rows(max(0, total - max_rows - self._cluster.n))
        if len(rows) > max_rows:
            # the oldest iteration may have lost rows to the limit
            keep = np.sort(rows["iteration"])[-max_rows]
            rows = rows[rows["iteration"] > keep]
        return Window(total, self._data(rows))

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
        """Call `callback` when a cell begins or ends; return how to stop."""
        return self._now().subscribe(callback)

    def _now(self) -> Timings:
        timings = self._cluster.timings
        if timings is not self._timings:
            self._timings = timings
            self._run = next(self._runs)
            self._first_start = {}
        return timings

    def _state(self, timings: Timings) -> State:
        if not len(timings):
            return "waiting"
        return "running" if timings.running else "ended"

    def _message(self, timings: Timings, state: State) -> str:
        if state == "waiting":
            if timings.closed:
                return "The cluster was stopped before a training cell ran."
            return "Waiting for the first iteration of a %%distributed cell."
        if state == "running":
            return "Training."
        return "The cluster was stopped." if timings.closed else "The cell has ended."

    def _data(self, rows: Rows) -> NDArray[np.float32]:
        rows = rows[np.lexsort((rows["rank"], rows["iteration"]))]
        for row in rows:
            self._first_start.setdefault(int(row["rank"]), int(row["start_ns"]))
        table = columns(rows)
        table["overlapped_us"] = rows["overlapped_ns"] / 1e3
        begins = np.array([self._first_start[int(rank)] for rank in rows["rank"]], dtype=np.int64)
        # each rank by its own clock: those of two VMs do not agree
        table["end_s"] = (rows["start_ns"] + rows["iteration_ns"] - begins) / 1e9
        return np.array([table[name] for name in COLUMNS], dtype=np.float32).reshape(
            len(COLUMNS), len(rows)
        )


def _known(value: float, why: str = "no iteration has ended yet") -> float | Unknown:
    return Unknown(why) if math.isnan(value) else value
