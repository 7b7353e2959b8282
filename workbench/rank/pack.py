"""Adds up a finished iteration into its record; runs in the sender's thread."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import chain

from workbench.rank.phases import Phase
from workbench.rank.recorder import Iteration, Part
from workbench.wire import Flag, IterationRecord, Layout, Message
from workbench.wire.record import TICK_NS

_LAST_TICK = 0xFFFFFFFF
_LAYOUTS = 256
"""Layouts that have a number at a time; numbers are used again in order."""


class Packer:
    """Makes messages of iterations, and names each new set of tensors once.

    Parameters
    ----------
    world_size
        Ranks in the ring.
    dropped
        Tells how many messages this rank's outbox has dropped.
    """

    def __init__(self, world_size: int, dropped: Callable[[], int]) -> None:
        self._world_size = world_size
        self._dropped = dropped
        self._layouts: dict[tuple[tuple[str, int, int], ...], int] = {}

    def __call__(self, iteration: Iteration) -> list[Message]:
        """Return the iteration's record, after the layout where that is new."""
        rows = _rows(iteration.parts)
        key = tuple(row[:3] for row in rows)
        number = self._layouts.get(key)
        messages = []
        if number is None:
            if len(self._layouts) == _LAYOUTS:
                self._layouts.clear()  # sparse gradients: a new size each time
            number = self._layouts[key] = len(self._layouts)
            messages.append(Message("layout", _layout(number, key).to_content()))
        record = self._record(iteration, rows, number)
        messages.append(Message("records", {}, (record.pack(),)))
        return messages

    def _record(self, iteration: Iteration, rows: list[_Row], layout: int) -> IterationRecord:
        parts = iteration.parts
        start, end = parts[0].start, parts[-1].end
        # what a step before had submitted counts from this iteration's start
        busy = merge(sorted((max(row[3], start), row[5]) for row in rows))
        waits = list(chain.from_iterable(part.waits for part in parts))
        communication = sum(stop - begin for begin, stop in busy)
        flags = Flag.NONE
        for part in parts:
            flags |= part.flags
        spent = [sum(times) for times in zip(*(part.spent for part in parts), strict=True)]
        return IterationRecord(
            iteration.cell,
            iteration.index,
            start_ns=start,
            duration_ns=end - start,
            data_ns=spent[Phase.DATA],
            forward_ns=spent[Phase.FORWARD],
            backward_ns=spent[Phase.BACKWARD],
            exposed_ns=spent[Phase.EXPOSED],
            optimizer_ns=spent[Phase.OPTIMIZER],
            other_ns=spent[Phase.OTHER],
            communication_ns=communication,
            overlapped_ns=communication - overlap(busy, waits),
            size_bytes=sum(row[1] for row in rows),
            tensors=sum(row[2] for row in rows),
            world_size=self._world_size,
            dropped=self._dropped(),
            flags=flags,
            layout=layout,
            submitted=_ticks(start, [row[3] for row in rows]),
            unfinished=_ticks(start, [row[4] for row in rows]),
            finished=_ticks(start, [row[5] for row in rows]),
        )


_Row = tuple[str, int, int, int, int, int]
"""name, bytes, tensors, submitted, unfinished, finished"""


def _rows(parts: list[Part]) -> list[_Row]:
    """Return the collectives that finished, by name, so that equal sets have one layout."""
    rows: list[_Row] = []
    for part in parts:
        done = part.collectives
        columns = (done.names, done.sizes, done.counts)
        times = (done.submitted, done.unfinished, done.finished)
        rows += [row for row in zip(*columns, *times, strict=True) if row[5]]
    return sorted(rows)


def _layout(number: int, key: tuple[tuple[str, int, int], ...]) -> Layout:
    names, sizes, counts = zip(*key, strict=True) if key else ((), (), ())
    return Layout(number, names, sizes, counts)


def _ticks(start: int, times: list[int]) -> array[int]:
    """Return times as ticks after `start`, held within 32 bits."""
    return array("I", [min(max(0, (time - start) // TICK_NS), _LAST_TICK) for time in times])


def merge(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the union of intervals that are sorted by their begin."""
    merged: list[tuple[int, int]] = []
    for begin, end in intervals:
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def overlap(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> int:
    """Return how long intervals of both lists run at once; each list has no overlap in itself."""
    return sum(
        max(0, min(end, stop) - max(begin, start)) for begin, end in first for start, stop in second
    )
