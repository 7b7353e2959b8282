"""The records of a cluster in memory: one row per iteration and rank."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.wire import Flag, IterationRecord, Layout
from workbench.wire.record import TICK_NS

PHASES = ("data", "copy", "forward", "backward", "exposed", "optimizer", "other")
"""In the order in which they stack; they add up to the iteration."""

MARKS = ("first", "last", "done")
"""After the iteration's start: its first collective submitted, its last, and all finished."""

ROW = np.dtype(
    [
        ("iteration", "i8"),
        ("rank", "i4"),
        ("cell", "i4"),
        ("start_ns", "i8"),
        ("iteration_ns", "i8"),
        *((f"{phase}_ns", "i8") for phase in PHASES),
        ("communication_ns", "i8"),
        ("overlapped_ns", "i8"),
        ("stopped_ns", "i8"),
        *((f"{mark}_ns", "i8") for mark in MARKS),
        ("bytes", "i8"),
        ("tensors", "i4"),
        ("world_size", "i4"),
        ("flags", "i4"),
        ("process_set", "i4"),
        ("peers", "i4"),
    ]
)
"""`process_set` and `peers` are the number of Horovod's process set, and of the ranks, that all
collectives of the iteration went through; where they went through several, 0 and all ranks."""

COLUMNS = tuple(ROW.names or ())
Rows = npt.NDArray[Any]

ROW_LIMIT = 1 << 20
"""Rows kept (172 MB); beyond it the older half is forgotten, and counted."""

COLLECTIVES_LIMIT = 1 << 15
"""Records whose single collectives are kept (65 MB for 161 tensors)."""


@dataclass(frozen=True)
class CollectiveRecord:
    """The collectives of one iteration and rank, as they came; iteration -1 for those in none."""

    iteration: int
    record: IterationRecord
    rank: int
    layout: Layout


class Store:
    """Rows in order of arrival; safe to read while a thread writes.

    Iterations are numbered through all cells of a cluster: a cell's first is
    one more than the last of the cells before it.
    """

    def __init__(self, row_limit: int = ROW_LIMIT) -> None:
        self._lock = threading.Lock()
        self._limit = row_limit
        self._rows = np.empty(1024, dtype=ROW)
        self._count = 0
        self._first_of_cell: dict[int, int] = {}
        self._next_iteration = 0
        self._layouts: dict[tuple[int, int], Layout] = {}
        self._collectives: deque[CollectiveRecord] = deque(maxlen=COLLECTIVES_LIMIT)
        self._collectives_total = 0
        self._dropped: dict[int, int] = {}
        self._arrived: dict[tuple[int, int], int] = {}
        self._iterations: dict[tuple[int, int], int] = {}
        self._unheard: set[int] = set()
        self.forgotten = 0
        self.version = 0

    @property
    def dropped(self) -> int:
        """Records that ranks dropped before they were sent."""
        return sum(self._dropped.values())

    @property
    def dropped_by_rank(self) -> dict[int, int]:
        """The same, by rank."""
        return dict(self._dropped)

    def arrived(self, cell: int, rank: int) -> int:
        """Return how many records of a cell have come from a rank."""
        return self._arrived.get((cell, rank), 0)

    def iterations(self, cell: int, rank: int) -> int:
        """Return how many iterations of a cell a rank has reported."""
        return self._iterations.get((cell, rank), 0)

    def unheard(self, cell: int) -> bool:
        """Whether a cell communicated within its iterations where nothing can time it."""
        return cell in self._unheard

    def add_layout(self, rank: int, layout: Layout) -> None:
        """Remember a rank's tensors by their number."""
        with self._lock:
            self._layouts[rank, layout.number] = layout

    def forget_layouts(self) -> None:
        """The ranks have joined anew and number their layouts from 0 again."""
        with self._lock:
            self._layouts.clear()

    def add(self, rank: int, record: IterationRecord) -> None:
        """Append a record."""
        with self._lock:
            iteration = -1
            layout = self._layouts.get((rank, record.layout))
            if not record.flags & Flag.OUTSIDE:
                first = self._first_of_cell.setdefault(record.cell, self._next_iteration)
                iteration = first + record.index
                self._next_iteration = max(self._next_iteration, iteration + 1)
                self._append(_row(iteration, rank, record, layout))
            if layout is not None and record.submitted:
                self._collectives.append(CollectiveRecord(iteration, record, rank, layout))
                self._collectives_total += 1
            if record.flags & Flag.UNHEARD:
                self._unheard.add(record.cell)
            self._dropped[rank] = record.dropped
            key = (record.cell, rank)
            self._arrived[key] = self._arrived.get(key, 0) + 1
            if iteration >= 0:
                self._iterations[key] = record.index + 1
            self.version += 1

    def rows(self, start: int = 0) -> Rows:
        """Return a copy of the rows from the `start`-th on, counted from the very first."""
        return self.read(start)[1]

    def read(self, start: int) -> tuple[int, Rows]:
        """Return the same, and the number of its first row, which `start` may be too early for."""
        with self._lock:
            first = max(start, self.forgotten)
            return first, self._rows[first - self.forgotten : self._count].copy()

    def between(self, first: int, last: int) -> Rows:
        """Return a copy of the rows held of the iterations `first` to `last`, both included."""
        with self._lock:
            held = self._rows[: self._count]
            return held[(held["iteration"] >= first) & (held["iteration"] <= last)]

    @property
    def total(self) -> int:
        """Rows that ever arrived."""
        return self.forgotten + self._count

    def collectives(self) -> list[CollectiveRecord]:
        """Return the records whose single collectives are kept."""
        return self.read_collectives(0)[1]

    def read_collectives(self, start: int) -> tuple[int, list[CollectiveRecord]]:
        """Return those from the `start`-th on, and the number of the first, as `read` does."""
        with self._lock:
            first = max(start, self._collectives_total - len(self._collectives))
            newest = itertools.islice(reversed(self._collectives), self._collectives_total - first)
            return first, list(newest)[::-1]

    def layouts(self) -> dict[tuple[int, int], Layout]:
        """Return the layouts that the ranks use, by rank and number."""
        with self._lock:
            return dict(self._layouts)

    def restore(
        self,
        rows: Rows,
        records: Iterable[CollectiveRecord],
        layouts: dict[tuple[int, int], Layout],
    ) -> None:
        """Take the place of a store that held these; iterations go on behind them."""
        with self._lock:
            self.forgotten = max(0, len(rows) - self._limit // 2)
            self._rows = rows[self.forgotten :]
            self._count = len(self._rows)
            self._layouts = dict(layouts)
            self._collectives.extend(records)
            self._collectives_total = len(self._collectives)
            self._next_iteration = int(rows["iteration"].max()) + 1 if len(rows) else 0
            cells, place = np.unique(rows["cell"], return_inverse=True)
            first = np.full(len(cells), self._next_iteration)
            np.minimum.at(first, place, rows["iteration"])
            self._first_of_cell = dict(zip(cells.tolist(), first.tolist(), strict=True))
            self.version += 1

    def _append(self, row: tuple[Any, ...]) -> None:
        if self._count == self._limit:
            half = self._limit // 2
            self._rows[: self._count - half] = self._rows[half : self._count]
            self._count -= half
            self.forgotten += half
        elif self._count == len(self._rows):
            self._rows = np.resize(self._rows, min(max(1024, 2 * self._count), self._limit))
        self._rows[self._count] = row
        self._count += 1


def peers(layout: Layout, world_size: int) -> tuple[int, int]:
    """Return the process set of all of a layout's collectives, and how many ranks it has."""
    sets = set(zip(layout.process_sets, layout.ranks, strict=True))
    number, ranks = sets.pop() if len(sets) == 1 else (0, 0)
    return (number, ranks) if number and ranks else (0, world_size)


def peers_of(rows: Rows) -> npt.NDArray[np.int64]:
    """Return how many ranks each row's collectives went through; files of old do not say it."""
    return np.where(rows["peers"] > 0, rows["peers"], rows["world_size"]).astype(np.int64)


def _row(
    iteration: int, rank: int, record: IterationRecord, layout: Layout | None
) -> tuple[Any, ...]:
    return (
        iteration,
        rank,
        record.cell,
        record.start_ns,
        record.duration_ns,
        *(getattr(record, f"{phase}_ns") for phase in PHASES),
        record.communication_ns,
        record.overlapped_ns,
        record.stopped_ns,
        *_marks(record),
        record.size_bytes,
        record.tensors,
        record.world_size,
        int(record.flags),
        *(peers(layout, record.world_size) if layout is not None else (0, record.world_size)),
    )


def _marks(record: IterationRecord) -> tuple[int, int, int]:
    if not record.submitted:
        return 0, 0, 0
    # by numpy: a kernel does this for thousands of records a second
    submitted, finished = (
        np.frombuffer(ticks, np.uint32) for ticks in (record.submitted, record.finished)
    )
    marks = submitted.min(), submitted.max(), finished.max()
    first, last, done = (int(mark) * TICK_NS for mark in marks)
    return first, last, done


def between(iteration: int, first: int | None, last: int | None) -> bool:
    """Whether an iteration is one of `first` to `last`, None being open."""
    return (first is None or iteration >= first) and (last is None or iteration <= last)


def warm(rows: Rows) -> Rows:
    """Return rows without each cell's first iteration, which warms up; all where it is alone."""
    others = rows[~first_of_cell(rows)]
    return others if len(others) else rows


def first_of_cell(rows: Rows) -> npt.NDArray[np.bool_]:
    """Return which are the first iteration of their cell."""
    return has_flag(rows, Flag.FIRST_OF_CELL)


def forward_unseen(rows: Rows) -> npt.NDArray[np.bool_]:
    """Return where data and forward cannot be told apart."""
    return has_flag(rows, Flag.FORWARD_UNSEEN)


def communication_unseen(rows: Rows) -> npt.NDArray[np.bool_]:
    """Return where ranks communicated, and none of it could be timed."""
    return np.asarray(has_flag(rows, Flag.UNHEARD) & (rows["communication_ns"] == 0))


def has_flag(rows: Rows, flag: Flag) -> npt.NDArray[np.bool_]:
    """Return which rows have a flag."""
    return np.asarray((rows["flags"] & int(flag)) != 0)
