"""Records that arrived together, as columns: made into rows, and a block of collectives."""

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
        The rank of each.

    Attributes
    ----------
    errors
        Why records were refused; the other attributes do not include them.
    arrived
        The index of each record in `records`.
    ranks, cells, index, flags, dropped, number, ends
        Of each record: the number is its layout's, the end is in ns on the rank's clock.
    """

    def __init__(self, records: Sequence[bytes], ranks: Sequence[int]) -> None:
        decoded = decode(records)
        self.errors = decoded.errors
        self._groups = [columns for _, columns in decoded.groups]
        group, place = np.full(len(records), -1, np.intp), np.zeros(len(records), np.intp)
        for number, (places, _) in enumerate(decoded.groups):
            group[places], place[places] = number, np.arange(len(places))
        self.arrived = np.flatnonzero(group >= 0)
        self._group, self._place = group[self.arrived], place[self.arrived]
        self.ranks = np.array(ranks, np.int64)[self.arrived]
        self.cells, self.index, self.flags, self.dropped, self.number, start, duration = (
            self._column(name, np.zeros(len(self), np.int64))
            for name in ("cell", "index", "flags", "dropped", "layout", "start_ns", "duration_ns")
        )
        self.ends = start + duration

    def __len__(self) -> int:
        return len(self.arrived)

    @property
    def in_iterations(self) -> npt.NDArray[np.bool_]:
        """Which records are iterations, not collectives outside of them."""
        return np.asarray((self.flags & int(Flag.OUTSIDE)) == 0)

    def fill(self, rows: npt.NDArray[Any], layouts: Sequence[Layout | None]) -> None:
        """Set the columns of `store.ROW` that depend on single records, in a row for each."""
        names = set(rows.dtype.names or ())
        for name in names:
            self._column(_RENAMED.get(name, name), rows[name])
        rows["rank"] = self.ranks
        for places, columns in self._parts():
            if columns["submitted"].shape[1]:
                submitted, finished = (
                    np.ascontiguousarray(columns[name]) for name in ("submitted", "finished")
                )
                marks = submitted.min(axis=1), submitted.max(axis=1), finished.max(axis=1)
                for name, mark in zip(("first_ns", "last_ns", "done_ns"), marks, strict=True):
                    rows[name][places] = mark.astype(np.int64) * TICK_NS
        rows["process_set"], rows["peers"] = _peers(layouts, rows["world_size"])
        rows["uncertainty_ns"] = np.inf

    def to_block(self, iterations: Numbers, layouts: Sequence[Layout | None]) -> RecordBlock:
        """Return the records whose collectives have names."""
        counts = np.array([columns["submitted"].shape[1] for columns in self._groups], np.int64)
        names = np.array([0 if one is None else len(one.names) for one in layouts], np.int64)
        known = np.empty(len(self), object)
        known[:] = layouts
        block = RecordBlock(iterations, self.ranks, known, self._groups, self._group, self._place)
        return block[(names > 0) & (names == counts[self._group])]

    def _parts(self) -> list[tuple[npt.NDArray[np.intp], Columns]]:
        """Return the indices and the columns of the records of each type."""
        return [
            (np.flatnonzero(self._group == number), columns)
            for number, columns in enumerate(self._groups)
        ]

    def _column(self, name: str, into: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Set `into` to a number of each record, if records have it."""
        for places, columns in self._parts():
            if name in (columns.dtype.names or ()):
                into[places] = columns[name]
        return into


def _peers(layouts: Sequence[Layout | None], world_size: Numbers) -> tuple[Numbers, Numbers]:
    """Return the process set of all collectives of each record, and how many ranks it has."""
    known = {id(layout): layout for layout in layouts if layout is not None}
    sets, ranks = np.zeros(len(layouts), np.int64), world_size.astype(np.int64)
    own = np.array([id(layout) for layout in layouts])
    for place, layout in known.items():
        number, size = one_set(layout)
        if number:
            sets[own == place], ranks[own == place] = number, size
    return sets, ranks


def one_set(layout: Layout) -> tuple[int, int]:
    """Return the process set of all of a layout's collectives, and its size; else 0 and 0."""
    sets = set(zip(layout.process_sets, layout.ranks, strict=True))
    number, ranks = sets.pop() if len(sets) == 1 else (0, 0)
    return (number, ranks) if number and ranks else (0, 0)


def block_of(records: Iterable[CollectiveRecord]) -> RecordBlock:
    """Return records as a block, without those that no rank can have sent."""
    packed, known = [], []
    for one in records:
        try:
            packed.append(one.record.pack())
        except (struct.error, OverflowError):  # the file from which it was read is damaged
            continue
        known.append(one)
    batch = Batch(packed, [one.rank for one in known])
    known = [known[place] for place in batch.arrived.tolist()]
    iterations = np.array([one.iteration for one in known], np.int64)
    return batch.to_block(iterations, [one.layout for one in known])
