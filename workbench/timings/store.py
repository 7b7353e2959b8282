"""The records of a cluster in memory: one row per iteration and rank."""

from __future__ import annotations

import json
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.wire import Flag, IterationRecord, Layout

PHASES = ("data", "forward", "backward", "exposed", "optimizer", "other")
"""In the order in which they stack; they add up to the iteration."""

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
        ("bytes", "i8"),
        ("tensors", "i4"),
        ("world_size", "i4"),
        ("flags", "i4"),
    ]
)

COLUMNS = tuple(ROW.names or ())
Rows = npt.NDArray[Any]

ROW_LIMIT = 1 << 20
"""Rows kept (150 MB); beyond it the older half is forgotten, and counted."""

COLLECTIVES_LIMIT = 1 << 15
"""Records whose single collectives are kept (65 MB for 161 tensors)."""


@dataclass(frozen=True)
class CollectiveRecord:
    """The collectives of one iteration and rank, as they came."""

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
        self._dropped: dict[int, int] = {}
        self._arrived: dict[tuple[int, int], int] = {}
        self.forgotten = 0
        self.version = 0

    @property
    def dropped(self) -> int:
        """Records that ranks dropped before they were sent."""
        return sum(self._dropped.values())

    def arrived(self, cell: int, rank: int) -> int:
        """Return how many records of a cell have come from a rank."""
        return self._arrived.get((cell, rank), 0)

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
            first = self._first_of_cell.setdefault(record.cell, self._next_iteration)
            iteration = first + record.index
            self._next_iteration = max(self._next_iteration, iteration + 1)
            self._append(_row(iteration, rank, record))
            layout = self._layouts.get((rank, record.layout))
            if layout is not None and record.submitted:
                self._collectives.append(CollectiveRecord(iteration, record, rank, layout))
            self._dropped[rank] = record.dropped
            key = (record.cell, rank)
            self._arrived[key] = self._arrived.get(key, 0) + 1
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
        with self._lock:
            return list(self._collectives)

    def save(self, folder: Path) -> None:
        """Write rows and layouts into `folder`."""
        with self._lock:
            rows = self._rows[: self._count].copy()
            state = {
                "first_of_cell": list(self._first_of_cell.items()),
                "next_iteration": self._next_iteration,
                "forgotten": self.forgotten,
                "layouts": [[rank, one.to_content()] for (rank, _), one in self._layouts.items()],
            }
        for name, write in (
            ("timings.npy", lambda path: np.save(path.open("wb"), rows)),
            ("timings.json", lambda path: path.write_text(json.dumps(state))),
        ):
            part = folder / f"{name}.part"
            write(part)
            part.replace(folder / name)

    def restore(self, folder: Path) -> None:
        """Read what `save` wrote; nothing where it wrote nothing."""
        try:
            rows = np.load(folder / "timings.npy")
            state = json.loads((folder / "timings.json").read_text())
        except (OSError, ValueError):
            return
        with self._lock:
            self._rows, self._count = rows, len(rows)
            self._first_of_cell = dict(map(tuple, state["first_of_cell"]))
            self._next_iteration = state["next_iteration"]
            self.forgotten = state["forgotten"]
            for rank, content in state["layouts"]:
                layout = Layout.from_content(content)
                self._layouts[rank, layout.number] = layout
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


def _row(iteration: int, rank: int, record: IterationRecord) -> tuple[Any, ...]:
    return (
        iteration,
        rank,
        record.cell,
        record.start_ns,
        record.duration_ns,
        *(getattr(record, f"{phase}_ns") for phase in PHASES),
        record.communication_ns,
        record.overlapped_ns,
        record.size_bytes,
        record.tensors,
        record.world_size,
        int(record.flags),
    )


def forward_unseen(rows: Rows) -> npt.NDArray[np.bool_]:
    """Return where data and forward cannot be told apart."""
    return np.asarray((rows["flags"] & int(Flag.FORWARD_UNSEEN)) != 0)
