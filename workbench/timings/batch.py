"""Records that arrived together, decoded into rows and into a block of collectives."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.timings.collective_records import CollectiveRecord, Numbers, RecordBlock
from workbench.wire import Flag, Layout
from workbench.wire.record import TICK_NS
from workbench.wire.record_columns import Columns, decode

_RENAMED = {"iteration_ns": "duration_ns", "bytes": "size_bytes"}
"""Columns of rows that have another name in records."""


class Batch:
    """Decoded records of several ranks, in order of arrival.

    Parameters
    ----------
    records
        The packed records.
    ranks
        The rank that sent each record.

    Attributes
    ----------
    errors
        The errors of records that were refused; the other attributes do not contain these records.
    valid_indices
        The index in `records` of each record that was not refused.
    ranks, cells, index, flags, dropped, layout_numbers, ends
        One value per record: the rank, the cell, the index of the iteration in the cell, the flags,
        how many iterations the rank has dropped so far, the number of the layout, and the end of
        the iteration in ns on the rank's clock.
    """

    def __init__(self, records: Sequence[bytes], ranks: Sequence[int]) -> None:
        decoded = decode(records)
        self.errors = decoded.errors
        self._groups = [columns for _, columns in decoded.groups]
        group = np.full(len(records), -1, np.intp)
        index_in_group = np.zeros(len(records), np.intp)
        for number, (indices, _) in enumerate(decoded.groups):
            group[indices] = number
            index_in_group[indices] = np.arange(len(indices))
        self.valid_indices = np.flatnonzero(group >= 0)
        self._group = group[self.valid_indices]
        self._index_in_group = index_in_group[self.valid_indices]
        self.ranks = np.array(ranks, np.int64)[self.valid_indices]
        self.cells, self.index, self.flags, self.dropped, self.layout_numbers, start, duration = (
            self._column(name, np.zeros(len(self), np.int64))
            for name in ("cell", "index", "flags", "dropped", "layout", "start_ns", "duration_ns")
        )
        self.ends = start + duration

    def __len__(self) -> int:
        return len(self.valid_indices)

    @property
    def in_iterations(self) -> npt.NDArray[np.bool_]:
        """A mask of the records of iterations; the others are of collectives outside of them."""
        return np.asarray((self.flags & int(Flag.OUTSIDE)) == 0)

    def fill(self, rows: npt.NDArray[Any], layouts: Sequence[Layout | None]) -> None:
        """Set the columns of `store.ROW` that depend on single records, in one row per record."""
        names = set(rows.dtype.names or ())
        for name in names:
            self._column(_RENAMED.get(name, name), rows[name])
        rows["rank"] = self.ranks
        for indices, columns in self._parts():
            if columns["submitted"].shape[1]:
                submitted, finished = (
                    np.ascontiguousarray(columns[name]) for name in ("submitted", "finished")
                )
                marks = {
                    "first_ns": submitted.min(axis=1),
                    "last_ns": submitted.max(axis=1),
                    "done_ns": finished.max(axis=1),
                }
                for name, mark in marks.items():
                    rows[name][indices] = mark.astype(np.int64) * TICK_NS
        rows["process_set"], rows["peers"] = _peers(layouts, rows["world_size"])
        rows["uncertainty_ns"] = np.inf

    def to_block(self, iterations: Numbers, layouts: Sequence[Layout | None]) -> RecordBlock:
        """Return the records whose layout has a name for each of the record's collectives."""
        counts = np.array([columns["submitted"].shape[1] for columns in self._groups], np.int64)
        names = np.array(
            [0 if layout is None else len(layout.names) for layout in layouts], np.int64
        )
        layout_array = np.empty(len(self), object)
        layout_array[:] = layouts
        block = RecordBlock(
            iterations, self.ranks, layout_array, self._groups, self._group, self._index_in_group
        )
        return block[(names > 0) & (names == counts[self._group])]

    def _parts(self) -> list[tuple[npt.NDArray[np.intp], Columns]]:
        """Return the indices and the columns of the records of each NumPy type."""
        return [
            (np.flatnonzero(self._group == number), columns)
            for number, columns in enumerate(self._groups)
        ]

    def _column(self, name: str, into: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Copy a field into the array `into` for the records that have it, and return `into`."""
        for indices, columns in self._parts():
            if name in (columns.dtype.names or ()):
                into[indices] = columns[name]
        return into


def _peers(layouts: Sequence[Layout | None], world_size: Numbers) -> tuple[Numbers, Numbers]:
    """Return the process set that each record's collectives share, and the size of that set."""
    distinct = {id(layout): layout for layout in layouts if layout is not None}
    sets = np.zeros(len(layouts), np.int64)
    ranks = world_size.astype(np.int64)
    layout_ids = np.array([id(layout) for layout in layouts])
    for layout_id, layout in distinct.items():
        number, size = one_set(layout)
        if number:
            sets[layout_ids == layout_id] = number
            ranks[layout_ids == layout_id] = size
    return sets, ranks


def one_set(layout: Layout) -> tuple[int, int]:
    """Return the number and the size of the process set that all collectives of a layout share.

    Return 0 and 0 if they use several sets, or the set is unknown.
    """
    sets = set(zip(layout.process_sets, layout.ranks, strict=True))
    number, ranks = sets.pop() if len(sets) == 1 else (0, 0)
    return (number, ranks) if number and ranks else (0, 0)


def block_of(records: Iterable[CollectiveRecord]) -> RecordBlock:
    """Return records as a block, without the records of a damaged file, which cannot be packed."""
    packed = []
    valid = []
    for record in records:
        try:
            packed.append(record.record.pack())
        except (struct.error, OverflowError):  # the file that it was read from is damaged
            continue
        valid.append(record)
    batch = Batch(packed, [record.rank for record in valid])
    valid = [valid[index] for index in batch.valid_indices.tolist()]
    iterations = np.array([record.iteration for record in valid], np.int64)
    return batch.to_block(iterations, [record.layout for record in valid])
