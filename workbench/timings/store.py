"""The records of a cluster in memory: one row per iteration and rank."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.errors import WireError
from workbench.timings.batch import Batch, block_of, one_set
from workbench.timings.collective_records import CollectiveRecord as CollectiveRecord
from workbench.timings.collective_records import CollectiveStore
from workbench.timings.counts import Counts
from workbench.timings.logged import NOTHING, LoggedStore, LoggedTable
from workbench.wire import Flag, IterationRecord, Layout

PHASES = ("data", "copy", "forward", "backward", "exposed", "optimizer", "other")
"""The phases in the order of stacked charts; their sum is the duration of the iteration."""

MARKS = ("first", "last", "done")
"""Times since the start of the iteration: when the first and the last collective were submitted,
and when all were finished."""

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
        ("transfer_ns", "i8"),
        ("messages_ns", "i8"),
        *((f"{mark}_ns", "i8") for mark in MARKS),
        ("bytes", "i8"),
        ("tensors", "i4"),
        ("world_size", "i4"),
        ("flags", "i4"),
        ("process_set", "i4"),
        ("peers", "i4"),
        ("samples", "i4"),
        ("batch", "i4"),
        ("batches", "i4"),
        ("communication_cpu_ns", "i8"),
        ("offset_ns", "i8"),
        ("uncertainty_ns", "f8"),
    ]
)
"""One iteration of one rank.

`process_set` and `peers` are the number and the size of the Horovod process set that all
collectives of the iteration used; 0 and the number of all ranks if they used several sets.
`samples`, `batch`, `batches` and `communication_cpu_ns` are as in `IterationRecord`, 0 if unknown.
`offset_ns` is the kernel's clock minus the rank's clock when the rank submitted its last
collective. `uncertainty_ns` is the maximum error of the offset, infinite if the offset is unknown.
"""

Rows = npt.NDArray[Any]

MAX_STORED_ROWS = 1 << 20
"""Maximum number of rows in memory, each of `ROW.itemsize` bytes. Beyond it, the older half is
deleted."""

_MAX_SHARED_LAYOUTS = 1024
"""Maximum number of layouts that ranks share. Beyond it, later layouts are stored anew."""

Sent = tuple[Sequence[int], Layout | Sequence[bytes]]
"""A message from ranks: either some ranks and the layout that all of them sent, or the rank of each
packed record and these records."""


class Store:
    """Rows in order of arrival; thread-safe.

    Iterations are numbered across the cells of a cluster: the first iteration of a cell follows
    the last iteration of the earlier cells.

    Attributes
    ----------
    collectives
        The records of single collectives.
    logged
        The values that cells have logged with their iterations.
    counts
        The numbers of records and iterations that have arrived, and of missing records.
    deleted_rows
        The number of rows that are no longer in memory.
    version
        A number that increases whenever records are added.
    """

    def __init__(self, max_rows: int = MAX_STORED_ROWS) -> None:
        self._lock = threading.Lock()
        self._limit = max_rows
        self._rows = np.empty(1024, dtype=ROW)
        self._count = 0
        self._first_of_cell: dict[int, int] = {}
        self._next_iteration = 0
        self._layouts: dict[tuple[int, int], Layout] = {}
        self._same: dict[Layout, Layout] = {}
        """Layouts by value, so that equal layouts of many ranks are kept once."""
        self.collectives = CollectiveStore()
        self.logged = LoggedStore(self._first_iterations)
        self.counts = Counts()
        self.deleted_rows = 0
        self.version = 0

    def add_layout(self, rank: int, layout: Layout) -> None:
        """Add a layout that a rank has sent."""
        self.add_all([((rank,), layout)])

    def forget_layouts(self) -> None:
        """Delete the layouts, because the ranks of a new ring number their layouts from 0."""
        with self._lock:
            self._layouts.clear()
            self._same.clear()

    def add(self, rank: int, record: IterationRecord) -> None:
        """Append a record."""
        self.add_all([((rank,), (record.pack(),))])

    def add_all(self, sent: Iterable[Sent]) -> list[WireError]:
        """Append what ranks have sent, in order; return the errors of records that were refused."""
        sent = list(sent)
        records: list[bytes] = []
        ranks: list[int] = []
        for sending_ranks, content in sent:
            if not isinstance(content, Layout):
                records += content
                ranks += sending_ranks
        batch = Batch(records, ranks)
        layout_numbers = np.zeros(len(records), np.int64)
        layout_numbers[batch.valid_indices] = batch.layout_numbers
        with self._lock:
            all_layouts = self._find_layouts(sent, layout_numbers.tolist())
            if len(batch):
                layouts = [all_layouts[index] for index in batch.valid_indices.tolist()]
                iterations = self._assign_iterations(batch)
                rows = np.zeros(len(batch), ROW)
                batch.fill(rows, layouts)
                rows["iteration"] = iterations
                self._append(rows[batch.in_iterations])
                self.collectives.append(batch.to_block(iterations, layouts))
                self.counts.add(batch)
                self.version += len(batch)
        return batch.errors

    def _first_iterations(self) -> dict[int, int]:
        with self._lock:
            return dict(self._first_of_cell)

    def _find_layouts(self, sent: Iterable[Sent], numbers: list[int]) -> list[Layout | None]:
        """Add the layouts that were sent, and return the layout that each record refers to.

        `numbers` are the layouts' numbers in the records.
        """
        layouts: list[Layout | None] = []
        for ranks, content in sent:
            if isinstance(content, Layout):
                if len(self._same) >= _MAX_SHARED_LAYOUTS:
                    self._same.clear()
                layout = self._same.setdefault(content, content)
                self._layouts.update(((rank, layout.number), layout) for rank in ranks)
            else:
                record_numbers = numbers[len(layouts) : len(layouts) + len(content)]
                layouts += map(self._layouts.get, zip(ranks, record_numbers, strict=True))
        return layouts

    def _assign_iterations(self, batch: Batch) -> npt.NDArray[np.int64]:
        """Return the number of each record's iteration in the run; -1 outside of iterations.

        The first iteration of a new cell follows the last iteration of the earlier cells.
        """
        iterations = np.full(len(batch), -1, np.int64)
        in_iterations = batch.in_iterations
        for cell in dict.fromkeys(batch.cells[in_iterations].tolist()):
            of_cell = in_iterations & (batch.cells == cell)
            if cell not in self._first_of_cell:
                highest_before = int(iterations[: np.argmax(of_cell)].max(initial=-1))
                self._first_of_cell[cell] = max(self._next_iteration, highest_before + 1)
            iterations[of_cell] = self._first_of_cell[cell] + batch.index[of_cell]
        self._next_iteration = max(self._next_iteration, int(iterations.max()) + 1)
        return iterations

    def rows(self, start: int = 0) -> Rows:
        """Return a copy of the rows from index `start` on; the first received row has index 0."""
        return self.read(start)[1]

    def read(self, start: int, stop: int | None = None) -> tuple[int, Rows]:
        """Return the index of the first row in memory from `start` on, and a copy of the rows."""
        with self._lock:
            first = max(start, self.deleted_rows)
            end = (
                self._count if stop is None else min(self._count, max(stop - self.deleted_rows, 0))
            )
            return first, self._rows[first - self.deleted_rows : end].copy()

    def between(self, first: int, last: int) -> Rows:
        """Return a copy of the rows of the iterations `first` to `last`, both included."""
        with self._lock:
            rows = self._rows[: self._count]
            return rows[(rows["iteration"] >= first) & (rows["iteration"] <= last)]

    def first_of_cell(self, cell: int) -> int | None:
        """Return the number of a cell's first iteration; None if none has arrived."""
        with self._lock:
            return self._first_of_cell.get(cell)

    @property
    def newest_cell(self) -> int:
        """The number of the last cell with iterations; 0 if there is no such cell."""
        with self._lock:
            return max(self._first_of_cell, default=0)

    @property
    def total(self) -> int:
        """Number of rows received so far."""
        return self.deleted_rows + self._count

    def layouts(self) -> dict[tuple[int, int], Layout]:
        """Return the layouts that the ranks use, by rank and number."""
        with self._lock:
            return dict(self._layouts)

    def restore(
        self,
        rows: Rows,
        records: Iterable[CollectiveRecord],
        layouts: dict[tuple[int, int], Layout],
        logged: LoggedTable = NOTHING,
    ) -> None:
        """Replace the contents by the contents of an earlier kernel's store."""
        self.logged.restore(logged)
        with self._lock:
            self.deleted_rows = max(0, len(rows) - self._limit // 2)
            self._rows = rows[self.deleted_rows :]
            self._count = len(self._rows)
            self._layouts = dict(layouts)
            self.collectives.append(block_of(records))
            self._next_iteration = int(rows["iteration"].max()) + 1 if len(rows) else 0
            cells, cell_index = np.unique(rows["cell"], return_inverse=True)
            first = np.full(len(cells), self._next_iteration)
            np.minimum.at(first, cell_index, rows["iteration"])
            self._first_of_cell = dict(zip(cells.tolist(), first.tolist(), strict=True))
            self.version += 1

    def extend(self, rows: Rows, records: Iterable[CollectiveRecord]) -> None:
        """Append the next rows and records of a recorded run; iterations are already numbered."""
        with self._lock:
            self._append(rows)
            self.collectives.append(block_of(records))
            for cell in dict.fromkeys(rows["cell"].tolist()):
                iterations = rows["iteration"][rows["cell"] == cell]
                self._first_of_cell.setdefault(cell, int(iterations.min()))
            self.version += 1

    def _append(self, rows: Rows) -> None:
        while len(rows):
            if self._count == self._limit:
                half = self._limit // 2
                self._rows[: self._count - half] = self._rows[half : self._count]
                self._count -= half
                self.deleted_rows += half
            new, rows = np.split(rows, [self._limit - self._count])
            if (end := self._count + len(new)) > len(self._rows):
                grown = np.empty(min(max(1024, 2 * end), self._limit), ROW)
                grown[: self._count] = self._rows[: self._count]
                self._rows = grown
            self._rows[self._count : end] = new
            self._count = end


def peers(layout: Layout, world_size: int) -> tuple[int, int]:
    """Return the process set that all collectives of a layout share, and its number of ranks.

    Return 0 and `world_size` if they use several sets.
    """
    number, ranks = one_set(layout)
    return (number, ranks) if number else (0, world_size)


def peers_of(rows: Rows) -> npt.NDArray[np.int64]:
    """Return how many ranks took part in each row's collectives."""
    # `peers` is 0 in rows from old files, which lack this column
    return np.where(rows["peers"] > 0, rows["peers"], rows["world_size"]).astype(np.int64)


def first_of_cell(rows: Rows) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows that are the first iteration of their cell, a warm-up.

    If a cell and the cell before it have one iteration each, the later iteration is no warm-up.
    """
    is_first = has_flag(rows, Flag.FIRST_OF_CELL)
    cells = np.unique(rows["cell"][is_first])
    if len(cells) < 2:
        return is_first
    has_one_iteration = ~np.isin(cells, np.unique(rows["cell"][~is_first]))
    continued = cells[1:][has_one_iteration[1:] & has_one_iteration[:-1]]
    return is_first & ~np.isin(rows["cell"], continued) if len(continued) else is_first


def last_cell(rows: Rows) -> Rows:
    """Return the rows of the last cell.

    If the last cell has one iteration, also return the rows of the successive cells before it that
    have one iteration each.
    """
    cells, inverse = np.unique(rows["cell"], return_inverse=True)
    has_several_iterations = np.zeros(len(cells), bool)
    has_several_iterations[inverse[~has_flag(rows, Flag.FIRST_OF_CELL)]] = True
    begin = len(cells) - 1
    while begin > 0 and not has_several_iterations[begin] and not has_several_iterations[begin - 1]:
        begin -= 1
    return np.asarray(rows[inverse >= begin])


def profiled(rows: Rows) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows with iterations that were profiled on any of their ranks."""
    flagged = has_flag(rows, Flag.PROFILED)
    if not flagged.any():
        return flagged
    return np.asarray(np.isin(rows["iteration"], rows["iteration"][flagged]))


def forward_unseen(rows: Rows) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows whose times of data and forward cannot be distinguished."""
    return has_flag(rows, Flag.FORWARD_UNSEEN)


def phases_unseen(rows: Rows) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows of compiled functions (``tf.function``).

    All of the time of these iterations is in `other`.
    """
    return np.asarray(forward_unseen(rows) & (rows["backward_ns"] == 0))


def communication_unseen(rows: Rows) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows with communication that could not be timed at all."""
    return np.asarray(has_flag(rows, Flag.UNHEARD) & (rows["communication_ns"] == 0))


def has_flag(rows: Rows, flag: Flag) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows that have a flag."""
    return np.asarray((rows["flags"] & int(flag)) != 0)
