"""Adds up a finished iteration into its record; runs in the sender's thread.

That thread shares its core and the interpreter's lock with training: numpy
does for all collectives at once what would take longer one by one.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import fields
from itertools import chain

import numpy as np
import numpy.typing as npt

from workbench.rank.collectives import Collected, Operation
from workbench.rank.phase import Phase
from workbench.rank.recorder import Iteration, Outside, Part
from workbench.wire import Flag, IterationRecord, Layout, Message
from workbench.wire.record import TICK_NS

_LAST_TICK = 0xFFFFFFFF
_LAYOUTS = 256
"""Layouts that have a number at a time; numbers are used again in order."""


class Packer:
    """Makes records of iterations, and names each new set of collectives once.

    Parameters
    ----------
    world_size
        Ranks in the ring.
    dropped
        Tells how many records this rank has dropped.
    """

    def __init__(self, world_size: int, dropped: Callable[[], int]) -> None:
        self._world_size = world_size
        self._dropped = dropped
        self._layouts: dict[tuple[Operation, ...], int] = {}
        self._orders: dict[tuple[Operation, ...], tuple[npt.NDArray[np.intp], int]] = {}

    def __call__(self, item: Iteration | Outside) -> tuple[Message | None, bytes]:
        """Return the layout's message where that is new, and the record."""
        if isinstance(item, Outside):
            done = item.collectives
        else:
            done = _joined([part.collectives for part in item.parts])
        operations = tuple(done.operations)
        layout = None if operations in self._orders else self._lay_out(operations)
        order, number = self._orders[operations]
        return layout, self._record(item, done, order, number).pack()

    def _lay_out(self, operations: tuple[Operation, ...]) -> Message | None:
        """Number a layout by name, so that equal sets have one; return it where it is new."""
        places = sorted(range(len(operations)), key=operations.__getitem__)
        key = tuple(operations[place] for place in places)
        if len(self._orders) == _LAYOUTS:
            self._orders.clear()
            self._layouts.clear()  # sparse operations: a new size each time
        new = key not in self._layouts
        number = self._layouts.setdefault(key, len(self._layouts))
        self._orders[operations] = np.array(places, np.intp), number
        return Message("layout", _layout(number, key).to_content()) if new else None

    def _record(
        self,
        item: Iteration | Outside,
        done: Collected,
        order: npt.NDArray[np.intp],
        layout: int,
    ) -> IterationRecord:
        parts = item.parts if isinstance(item, Iteration) else []
        start, duration, spent, flags = _window(parts, done)
        submitted = np.array(done.submitted, np.int64)[order]
        unfinished = np.array(done.unfinished, np.int64)[order]
        finished = np.array(done.finished, np.int64)[order]
        # what a step before had submitted counts from this iteration's start
        busy = merge(np.maximum(submitted, start), finished)
        waits = list(chain.from_iterable(part.waits for part in parts))
        communication = sum(stop - begin for begin, stop in busy)
        return IterationRecord(
            item.cell,
            item.index if isinstance(item, Iteration) else 0,
            start_ns=start,
            duration_ns=duration,
            data_ns=spent[Phase.DATA],
            copy_ns=spent[Phase.COPY],
            forward_ns=spent[Phase.FORWARD],
            backward_ns=spent[Phase.BACKWARD],
            exposed_ns=spent[Phase.EXPOSED],
            optimizer_ns=spent[Phase.OPTIMIZER],
            other_ns=spent[Phase.OTHER],
            communication_ns=communication,
            overlapped_ns=communication - overlap(busy, waits),
            stopped_ns=_stopped(waits, submitted, finished) if _one_ring(done) else 0,
            size_bytes=sum(operation.size for operation in done.operations),
            tensors=sum(operation.tensors for operation in done.operations),
            world_size=self._world_size,
            dropped=self._dropped(),
            flags=flags,
            layout=layout,
            submitted=_ticks(start, submitted),
            unfinished=_ticks(start, unfinished),
            finished=_ticks(start, finished),
        )


def _window(parts: list[Part], done: Collected) -> tuple[int, int, list[int], Flag]:
    """Return start and duration of a window, nanoseconds for each of its phases, and flags."""
    if not parts:
        start = min(done.submitted)
        return start, max(done.finished) - start, [0] * Phase.GAP, Flag.OUTSIDE
    flags = Flag.NONE
    for part in parts:
        flags |= part.flags
    start, duration = parts[0].start, parts[-1].end - parts[0].start
    spans = [part.spans for part in parts if part.spans is not None]
    columns = [part.spent for part in parts]
    if len(spans) == len(parts):
        columns, flags = [one.take() for one in spans], flags | Flag.DEVICE_TIMES
    spent = [sum(times) for times in zip(*columns, strict=True)]
    return start, sum(spent) if flags & Flag.DEVICE_TIMES else duration, spent, flags


def _stopped(
    waits: list[tuple[int, int]],
    submitted: npt.NDArray[np.int64],
    finished: npt.NDArray[np.int64],
) -> int:
    """Return how long training stood still for anything but the last collective."""
    if not len(submitted):
        return sum(end - begin for begin, end in waits)
    last, done = int(submitted.max()), int(finished.max())
    return sum(
        end - begin if begin >= done else max(0, min(end, last) - begin) for begin, end in waits
    )


def _one_ring(done: Collected) -> bool:
    """Whether all collectives went through one process set: else ranks stop in different ones."""
    return len({operation.process_set for operation in done.operations}) <= 1


def _joined(parts: list[Collected]) -> Collected:
    """Return the collectives of all steps of an iteration as one."""
    if len(parts) == 1:
        return parts[0]
    return Collected(
        *(
            list(chain.from_iterable(getattr(part, column.name) for part in parts))
            for column in fields(Collected)
        )
    )


def _layout(number: int, key: tuple[Operation, ...]) -> Layout:
    columns = zip(*key, strict=True) if key else [()] * len(Operation._fields)
    return Layout(number, *columns)


def _ticks(start: int, times: npt.NDArray[np.int64]) -> array[int]:
    """Return times as ticks after `start`, held within 32 bits."""
    ticks = np.clip((times - start) // TICK_NS, 0, _LAST_TICK)
    return array("I", ticks.astype(np.uint32).tobytes())


def merge(begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the union of the intervals from `begins` to `ends`, in order."""
    if not len(begins):
        return []
    order = np.argsort(begins, kind="stable")
    begins, latest = begins[order], np.maximum.accumulate(ends[order])
    gaps = np.flatnonzero(begins[1:] > latest[:-1]) + 1
    first, last = np.append(0, gaps), np.append(gaps - 1, len(begins) - 1)
    return list(zip(begins[first].tolist(), latest[last].tolist(), strict=True))


def overlap(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> int:
    """Return how long intervals of both lists run at once; each list has no overlap in itself."""
    return sum(
        max(0, min(end, stop) - max(begin, start)) for begin, end in first for start, stop in second
    )
