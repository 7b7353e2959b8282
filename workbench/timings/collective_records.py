"""The single collectives of many records, kept packed and decoded when they are read."""

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

COLLECTIVES_LIMIT = 1 << 15
"""Most records of single collectives in memory (62 MB for 161 tensors)."""
_SMALL_BLOCKS = 64
_SMALL_RECORDS = 1024
"""Blocks are joined when there are so many of them, or of their records: queries visit each."""

Numbers = npt.NDArray[np.int64]


class CollectiveRecord:
    """The collectives of one iteration and rank.

    Attributes
    ----------
    iteration
        Its number; -1 for collectives outside of iterations.
    rank
        The rank that sent it.
    layout
        Names its collectives.
    flags
        Those of the record.
    """

    __slots__ = ("_packed", "_record", "flags", "iteration", "layout", "rank")

    def __init__(self, iteration: int, record: IterationRecord, rank: int, layout: Layout) -> None:
        self.iteration, self.rank, self.layout = iteration, rank, layout
        self.flags = int(record.flags)
        self._record: IterationRecord | None = record
        self._packed: tuple[Columns, int] | None = None

    @classmethod
    def packed(
        cls, iteration: int, rank: int, layout: Layout, flags: int, columns: Columns, place: int
    ) -> CollectiveRecord:
        """Return a record that is decoded when `record` is first read."""
        new = cls.__new__(cls)
        new.iteration, new.rank, new.layout, new.flags = iteration, rank, layout, flags
        new._record, new._packed = None, (columns, place)
        return new

    @property
    def record(self) -> IterationRecord:
        """The record itself."""
        if self._record is None:
            assert self._packed is not None
            self._record = unpack(*self._packed)
        return self._record


@dataclass(frozen=True)
class RecordBlock:
    """Records in order of arrival; those of one type are in one array.

    Attributes
    ----------
    iterations, ranks
        Of each record; iteration -1 outside of iterations.
    layouts
        The layout of each record.
    groups
        Columns for each type of records.
    group, place
        Where each record is: in which of the groups, and at which index.
    """

    iterations: Numbers
    ranks: Numbers
    layouts: npt.NDArray[np.object_]
    groups: Sequence[Columns]
    group: npt.NDArray[np.intp]
    place: npt.NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.iterations)

    def __getitem__(self, chosen: Any) -> RecordBlock:
        """Return some records: a slice, a mask or indices; the packed data are shared."""
        return RecordBlock(
            self.iterations[chosen],
            self.ranks[chosen],
            self.layouts[chosen],
            self.groups,
            self.group[chosen],
            self.place[chosen],
        )

    def __iter__(self) -> Iterator[CollectiveRecord]:
        flags = np.zeros(len(self), np.int64)
        for number, places in self.by_group():
            flags[places] = self.groups[number]["flags"][self.place[places]]
        return map(
            CollectiveRecord.packed,
            self.iterations.tolist(),
            self.ranks.tolist(),
            self.layouts.tolist(),
            flags.tolist(),
            map(self.groups.__getitem__, self.group.tolist()),
            self.place.tolist(),
        )

    def by_group(self) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
        """Yield the number of each group that has records here, and their indices."""
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
            for number, places in block.by_group():
                columns = block.groups[number][block.place[places]]
                types.setdefault(columns.dtype, []).append((places + start, columns))
            start += len(block)
        group, place = np.empty(start, np.intp), np.empty(start, np.intp)
        groups: list[Columns] = []
        for own in types.values():
            where = np.concatenate([places for places, _ in own])
            group[where], place[where] = len(groups), np.arange(len(where))
            groups.append(np.concatenate([columns for _, columns in own]))
        none = np.empty(0, np.int64)
        return cls(
            np.concatenate([none, *(one.iterations for one in parts)]),
            np.concatenate([none, *(one.ranks for one in parts)]),
            np.concatenate([none.astype(object), *(one.layouts for one in parts)]),
            groups,
            group,
            place,
        )


class CollectiveStore:
    """The newest records of single collectives in memory, in order of arrival; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: deque[RecordBlock] = deque()
        self._small: list[RecordBlock] = []
        """The newest blocks, which are joined before they go to `_blocks`."""
        self._total = self._stored = 0

    def between(self, first: int | None = None, last: int | None = None) -> list[CollectiveRecord]:
        """Return the records in memory of the iterations `first` to `last`; by default all."""
        with self._lock:
            blocks, skipped = [*self._blocks, *self._small], self._skipped
        found: list[CollectiveRecord] = []
        for block in blocks:
            chosen = np.arange(len(block)) >= skipped
            skipped = max(0, skipped - len(block))
            chosen &= (first is None) | (block.iterations >= (first or 0))
            chosen &= (last is None) | (block.iterations <= (last or 0))
            found += block if chosen.all() else block[chosen] if chosen.any() else ()
        return found

    def read(self, start: int) -> tuple[int, RecordBlock]:
        """Return the index of the first record in memory from `start` on, and the records."""
        with self._lock:
            first = max(start, self._total - self._stored + self._skipped)
            missing, blocks = self._total - first, []
            for block in itertools.chain(reversed(self._small), reversed(self._blocks)):
                if missing <= 0:
                    break
                blocks.append(block[max(0, len(block) - missing) :])
                missing -= len(block)
        return first, RecordBlock.join(reversed(blocks))

    def append(self, block: RecordBlock) -> None:
        """Append records, and delete the oldest ones beyond `COLLECTIVES_LIMIT`."""
        if not len(block):
            return
        with self._lock:
            self._small.append(block)
            self._total += len(block)
            self._stored += len(block)
            if len(self._small) >= _SMALL_BLOCKS or sum(map(len, self._small)) >= _SMALL_RECORDS:
                self._blocks.append(RecordBlock.join(self._small))
                self._small = []
                while self._skipped >= len(self._blocks[0]):
                    self._stored -= len(self._blocks.popleft())

    @property
    def _skipped(self) -> int:
        """How many of the oldest records are more than may be in memory."""
        return max(0, self._stored - COLLECTIVES_LIMIT)
