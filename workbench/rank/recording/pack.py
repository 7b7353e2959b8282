"""Makes the record of a finished iteration, in the sender's thread.

It uses numpy for all collectives together, to take little time of the GIL from training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from workbench.rank.recording.collectives import Collected, Operation, Source
from workbench.rank.recording.iteration import Outside, Recorded, StepRecord
from workbench.rank.recording.phase import Phase
from workbench.wire import Flag, IterationRecord, Layout
from workbench.wire.record import TICK_NS, TIMES

Times = npt.NDArray[np.int64]


class Intervals(NamedTuple):
    """Intervals of time in order, of which none overlaps another."""

    begins: Times
    ends: Times

    @property
    def length(self) -> int:
        """How long all are together."""
        return int((self.ends - self.begins).sum())


_TRANSFER = [TIMES.index("began"), TIMES.index("ended")]
_LAST_TICK = 0xFFFFFFFF
_YES = np.ones(1, bool)
_NO_TIME = np.zeros(1, np.int64)
_MOST = 1 << 15
"""Most collectives in a record outside of iterations."""
_LAYOUTS = 256
"""Most layouts with a number; then numbers are reused."""


class _Order(NamedTuple):
    """Operations in the order of a layout.

    Attributes
    ----------
    places
        Place of each operation of the layout among those that were given.
    layout
        Number of the layout.
    size_bytes, tensors
        Sums over all operations.
    one_set
        Whether all ran in one process set.
    timed
        Whether all their `TIMES` are recorded.
    """

    places: npt.NDArray[np.intp]
    layout: int
    size_bytes: int
    tensors: int
    one_set: bool
    timed: bool


class Packer:
    """Makes records of iterations, and layouts of their collectives.

    A collective belongs to the iteration in which the rank has waited for it.

    Parameters
    ----------
    sources
        Where the collectives come from.
    world_size
        Number of ranks in the ring.
    dropped
        Returns how many records this rank has dropped.
    """

    def __init__(
        self, sources: Sequence[Source], world_size: int, dropped: Callable[[], int]
    ) -> None:
        self._sources = sources
        self._world_size = world_size
        self._dropped = dropped
        self._layouts: dict[tuple[Operation, ...], int] = {}
        self._orders: dict[tuple[Operation, ...], _Order] = {}
        self._latest: tuple[tuple[Operation, ...], _Order] | None = None

    def __call__(self, item: Recorded) -> Iterator[tuple[Layout | None, bytes]]:
        """Yield each record of an item, and its layout if that is new."""
        if isinstance(item, Outside):
            if item.cell is None:  # a layout that was lost on the way is missing in one cell only
                self._forget_layouts()
            yield from self._outside(item.cell, item.until)
            return
        steps = item.steps
        handles = [handle for step in steps for handle in step.handles]
        if steps[0].flags & Flag.FIRST_OF_CELL:  # before it, such as the broadcast of parameters
            yield from self._outside(item.cell, steps[0].start, handles)
        done = self._take(steps[-1].end, handles)
        yield self._packed(item.cell, item.index, steps, done)

    def _outside(
        self, cell: int | None, until: int, handles: list[int] | None = None
    ) -> Iterator[tuple[Layout | None, bytes]]:
        """Yield records of the collectives that belong to no iteration, if there are any."""
        done = self._take(until, handles)
        if cell is None:
            return
        for first in range(0, len(done.operations), _MOST):
            part = slice(first, first + _MOST)
            some = Collected(done.operations[part], done.times[:, part])
            yield self._packed(cell, 0, [], some)

    def _take(self, until: int, handles: list[int] | None) -> Collected:
        return Collected.join(source.take(until, handles) for source in self._sources)

    def _packed(
        self, cell: int, index: int, steps: list[StepRecord], done: Collected
    ) -> tuple[Layout | None, bytes]:
        order, layout = self._lay_out(done.operations)
        times = done.times[:, order.places]
        record = self._record(cell, index, steps, times, order)
        return layout, record.pack(_ticks(record.start_ns, times))

    def _lay_out(self, operations: tuple[Operation, ...]) -> tuple[_Order, Layout | None]:
        """Return the order of operations in their layout, and the layout if it is new.

        Its number is the same for each order of the operations.
        """
        # most iterations have the same tuple, whose hash would take long
        if self._latest is None or self._latest[0] is not operations:
            if operations not in self._orders:
                return self._new_order(operations)
            self._latest = operations, self._orders[operations]
        return self._latest[1], None

    def _forget_layouts(self) -> None:
        """Send the layouts again before the next records that use them."""
        self._orders.clear()
        self._layouts.clear()
        self._latest = None

    def _new_order(self, operations: tuple[Operation, ...]) -> tuple[_Order, Layout | None]:
        places = sorted(range(len(operations)), key=operations.__getitem__)
        key = tuple(operations[place] for place in places)
        if len(self._orders) == _LAYOUTS:  # sparse operations have another size each time
            self._forget_layouts()
        new = key not in self._layouts
        number = self._layouts.setdefault(key, len(self._layouts))
        order = self._orders[operations] = _Order(
            np.array(places, np.intp),
            number,
            sum(operation.size for operation in operations),
            sum(operation.tensors for operation in operations),
            len({operation.process_set for operation in operations}) <= 1,
            all(operation.library for operation in operations),
        )
        return order, _layout(number, key) if new else None

    def _record(
        self,
        cell: int,
        index: int,
        steps: list[StepRecord],
        times: Times,
        order: _Order,
    ) -> IterationRecord:
        submitted, finished = times[0], times[-1]
        start, duration, spent, flags = _window(steps, submitted, finished)
        # a collective submitted before this iteration counts from its start
        busy = merge(np.maximum(submitted, start), np.maximum(finished, start))
        waits = _waits(steps)
        if order.timed:
            flags |= Flag.TRANSFERS_SEEN
        return IterationRecord(
            cell,
            index,
            start_ns=start,
            duration_ns=duration,
            data_ns=spent[Phase.DATA],
            copy_ns=spent[Phase.COPY],
            forward_ns=spent[Phase.FORWARD],
            backward_ns=spent[Phase.BACKWARD],
            exposed_ns=spent[Phase.EXPOSED],
            optimizer_ns=spent[Phase.OPTIMIZER],
            other_ns=spent[Phase.OTHER],
            communication_ns=busy.length,
            overlapped_ns=busy.length - overlap(busy, waits),
            stopped_ns=_stopped(waits, submitted, finished) if order.one_set else 0,
            transfer_ns=overlap(_transfers(times), waits) if order.timed else 0,
            size_bytes=order.size_bytes,
            tensors=order.tensors,
            world_size=self._world_size,
            dropped=self._dropped() + sum(source.lost for source in self._sources),
            flags=flags,
            layout=order.layout,
        )


def _window(
    steps: list[StepRecord], submitted: Times, finished: Times
) -> tuple[int, int, list[int], Flag]:
    """Return the start, duration, nanoseconds of each phase, and flags of an iteration."""
    if not steps:
        start = int(submitted.min())
        return start, int(finished.max()) - start, [0] * Phase.GAP, Flag.OUTSIDE
    flags = Flag.NONE
    for step in steps:
        flags |= step.flags
    start, duration = steps[0].start, steps[-1].end - steps[0].start
    spans = [step.spans for step in steps if step.spans is not None]
    columns = [step.spent for step in steps]
    if len(spans) == len(steps):
        columns, flags = [one.take() for one in spans], flags | Flag.DEVICE_TIMES
    spent = [sum(times) for times in zip(*columns, strict=True)]
    return start, sum(spent) if flags & Flag.DEVICE_TIMES else duration, spent, flags


def _waits(steps: list[StepRecord]) -> Intervals:
    """Return when training waited for communication."""
    waits = np.array([wait for step in steps for wait in step.waits], np.int64).reshape(-1, 2)
    return Intervals(waits[:, 0], waits[:, 1])


def _stopped(waits: Intervals, submitted: Times, finished: Times) -> int:
    """Return how long training waited for something else than the last collective."""
    if not len(submitted):
        return waits.length
    last, done = submitted.max(), finished.max()
    until = np.where(waits.begins >= done, waits.ends, np.minimum(waits.ends, last))
    return int(np.maximum(until - waits.begins, 0).sum())


def _layout(number: int, key: tuple[Operation, ...]) -> Layout:
    columns = zip(*key, strict=True) if key else [()] * len(Operation._fields)
    return Layout(number, *columns)


def _ticks(start: int, times: Times) -> npt.NDArray[np.uint32]:
    """Return times as ticks after `start`, limited to 32 bits."""
    ticks = (times - start) // TICK_NS
    return np.minimum(np.maximum(ticks, 0), _LAST_TICK).astype(np.uint32)


def _transfers(times: Times) -> Intervals:
    """Return when at least one transfer was in progress."""
    began, ended = times[_TRANSFER]
    # the collectives of a buffer have the same transfer, and are mostly next to each other
    differs = (began[1:] != began[:-1]) | (ended[1:] != ended[:-1])
    first = np.concatenate([_YES[: len(began)], differs])
    return merge(began[first], ended[first])


def merge(begins: Times, ends: Times) -> Intervals:
    """Return the union of the intervals from `begins` to `ends`."""
    order = begins.argsort(kind="stable")
    begins, latest = begins[order], np.maximum.accumulate(ends[order])
    gaps = begins[1:] > latest[:-1]
    edge = _YES[: len(begins)]
    return Intervals(begins[np.concatenate([edge, gaps])], latest[np.concatenate([gaps, edge])])


def overlap(first: Intervals, second: Intervals) -> int:
    """Return the time that is in both."""
    if not len(first.begins) or not len(second.begins):
        return 0
    edges = np.concatenate(second)
    # how much of the first ones there was before each edge
    place = first.begins.searchsorted(edges)
    lengths = np.concatenate([_NO_TIME, (first.ends - first.begins).cumsum()])
    before = lengths[place] - np.maximum(first.ends[place - 1] - edges, 0) * (place > 0)
    return int(before[len(second.begins) :].sum() - before[: len(second.begins)].sum())
