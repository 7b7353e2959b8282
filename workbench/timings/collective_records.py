"""The single collectives of many records, kept packed and decoded when they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.wire import IterationRecord, Layout
from workbench.wire.record_columns import Columns, unpack

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
