"""The single collectives of many records: kept packed, and decoded when they are read."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.wire import IterationRecord, Layout
from workbench.wire.record_columns import Columns, unpack

MAX_COLLECTIVE_RECORDS = 1 << 15
"""Maximum number of records of single collectives in memory (62 MB for 161 tensors)."""
_MAX_SMALL_BLOCKS = 64
"""Small blocks are joined when there are this many, because queries visit each block."""
_MAX_SMALL_RECORDS = 1024
"""Small blocks are also joined when they have this many records together."""

Numbers = npt.NDArray[np.int64]


class CollectiveRecord:
    """The collectives of one iteration and rank.

    Attributes
    ----------
    iteration
        Number of the iteration; -1 for collectives outside of iterations.
    rank
        The rank that sent the record.
    layout
        Layout of the record, which names the collectives.
    flags
        The flags of the record.
    """

    __slots__ = ("_packed", "_record", "flags", "iteration", "layout", "rank")

    def __init__(self, iteration: int, record: IterationRecord, rank: int, layout: Layout) -> None:
        self.iteration = iteration
        self.rank = rank
        self.layout = layout
        self.flags = int(record.flags)
        self._record: IterationRecord | None = record
        self._packed: tuple[Columns, int] | None = None

    @classmethod
    def packed(
        cls, iteration: int, rank: int, layout: Layout, flags: int, columns: Columns, index: int
    ) -> CollectiveRecord:
        """Return a record that is decoded when `record` is first read."""
        new = cls.__new__(cls)
        new.iteration = iteration
        new.rank = rank
        new.layout = layout
        new.flags = flags
        new._record = None
        new._packed = (columns, index)
        return new

    @property
    def record(self) -> IterationRecord:
        """The decoded record."""
        if self._record is None:
            assert self._packed is not None
            self._record = unpack(*self._packed)
        return self._record


@dataclass(frozen=True)
class RecordBlock:
    """Records in order of arrival; all records with the same NumPy type are in one array.

    Attributes
    ----------
    iterations, ranks
        Iteration and rank of each record; the iteration is -1 outside of iterations.
    layouts
        The layout of each record.
    groups
        One structured array for each NumPy type of records.
    group, index_in_group
        The position of each record: the index of its group in `groups`, and its index in that
        group.
    """

    iterations: Numbers
    ranks: Numbers
    layouts: npt.NDArray[np.object_]
    groups: Sequence[Columns]
    group: npt.NDArray[np.intp]
    index_in_group: npt.NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.iterations)

    def __getitem__(self, selection: Any) -> RecordBlock:
        """Return the records of a slice, a mask or indices; the packed data are shared."""
        return RecordBlock(
            self.iterations[selection],
            self.ranks[selection],
            self.layouts[selection],
            self.groups,
            self.group[selection],
            self.index_in_group[selection],
        )

    def __iter__(self) -> Iterator[CollectiveRecord]:
        flags = np.zeros(len(self), np.int64)
        for number, indices in self.by_group():
            flags[indices] = self.groups[number]["flags"][self.index_in_group[indices]]
        return map(
            CollectiveRecord.packed,
            self.iterations.tolist(),
            self.ranks.tolist(),
            self.layouts.tolist(),
            flags.tolist(),
            map(self.groups.__getitem__, self.group.tolist()),
            self.index_in_group.tolist(),
        )

    def by_group(self) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
        """Yield the index of each group with records in the block, and these records' indices."""
        for number in np.unique(self.group).tolist():
            yield number, np.flatnonzero(self.group == number)

    @classmethod
    def join(cls, blocks: Iterable[RecordBlock]) -> RecordBlock:
        """Return the records of several blocks; the packed data are copied."""
        parts = [block for block in blocks if len(block)]
        if len(parts) == 1:
            return parts[0]
        types: dict[Any, list[tuple[npt.NDArray[np.intp], Columns]]] = {}
        start = 0
        for block in parts:
            for number, indices in block.by_group():
                columns = block.groups[number][block.index_in_group[indices]]
                types.setdefault(columns.dtype, []).append((indices + start, columns))
            start += len(block)
        group = np.empty(start, np.intp)
        index_in_group = np.empty(start, np.intp)
        groups: list[Columns] = []
        for pieces in types.values():
            indices = np.concatenate([piece_indices for piece_indices, _ in pieces])
            group[indices] = len(groups)
            index_in_group[indices] = np.arange(len(indices))
            groups.append(np.concatenate([columns for _, columns in pieces]))
        empty = np.empty(0, np.int64)
        return cls(
            np.concatenate([empty, *(block.iterations for block in parts)]),
            np.concatenate([empty, *(block.ranks for block in parts)]),
            np.concatenate([empty.astype(object), *(block.layouts for block in parts)]),
            groups,
            group,
            index_in_group,
        )


class CollectiveStore:
    """The newest records of single collectives in memory, in order of arrival; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: deque[RecordBlock] = deque()
        self._small: list[RecordBlock] = []
        """The newest blocks, which are joined before they are moved to `_blocks`."""
        self._total = self._stored = 0

    def between(self, first: int | None = None, last: int | None = None) -> list[CollectiveRecord]:
        """Return the records in memory of the iterations `first` to `last`; by default all."""
        with self._lock:
            blocks = [*self._blocks, *self._small]
            skipped = self._skipped
        records: list[CollectiveRecord] = []
        for block in blocks:
            is_selected = np.arange(len(block)) >= skipped
            skipped = max(0, skipped - len(block))
            is_selected &= (first is None) | (block.iterations >= (first or 0))
            is_selected &= (last is None) | (block.iterations <= (last or 0))
            records += (
                block if is_selected.all() else block[is_selected] if is_selected.any() else ()
            )
        return records

    def read(self, start: int) -> tuple[int, RecordBlock]:
        """Return the index of the first record in memory from `start` on, and the records."""
        with self._lock:
            first = max(start, self._total - self._stored + self._skipped)
            missing = self._total - first
            blocks = []
            for block in itertools.chain(reversed(self._small), reversed(self._blocks)):
                if missing <= 0:
                    break
                blocks.append(block[max(0, len(block) - missing) :])
                missing -= len(block)
        return first, RecordBlock.join(reversed(blocks))

    def append(self, block: RecordBlock) -> None:
        """Append records, and delete the oldest ones beyond `MAX_COLLECTIVE_RECORDS`."""
        if not len(block):
            return
        with self._lock:
            self._small.append(block)
            self._total += len(block)
            self._stored += len(block)
            if (
                len(self._small) >= _MAX_SMALL_BLOCKS
                or sum(map(len, self._small)) >= _MAX_SMALL_RECORDS
            ):
                self._blocks.append(RecordBlock.join(self._small))
                self._small = []
                while self._skipped >= len(self._blocks[0]):
                    self._stored -= len(self._blocks.popleft())

    @property
    def _skipped(self) -> int:
        """Number of the oldest stored records that exceed the maximum, and are skipped."""
        return max(0, self._stored - MAX_COLLECTIVE_RECORDS)
