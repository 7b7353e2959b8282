"""Makes the records of finished iterations, in the sender's thread.

It holds the GIL only briefly: it uses numpy once for all collectives of several iterations. The
remaining computations only involve the few buffers that carry these collectives.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter_ns
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from workbench.rank.recording.batches import NO_PROGRESS, BatchProgress
from workbench.rank.recording.collectives import Collected, CollectiveSource, Operation
from workbench.rank.recording.durations import Durations, Interval, durations
from workbench.rank.recording.exchange import UNKNOWN, CellExchange
from workbench.rank.recording.iteration import Outside, Recorded, RecordedIteration, StepRecord
from workbench.rank.recording.phase import Phase
from workbench.wire import Flag, IterationRecord, Layout
from workbench.wire.record import TICK_NS, Buffers, pack_all

T = TypeVar("T")
Times = npt.NDArray[np.int64]

_LAST_TICK = 0xFFFFFFFF
_FIRST_OF_CELL, _FORWARD_UNSEEN, _DEVICE_TIMES, _TRANSFERS_SEEN, _UNRECORDED_COMMUNICATION = map(
    int,
    (
        Flag.FIRST_OF_CELL,
        Flag.FORWARD_UNSEEN,
        Flag.DEVICE_TIMES,
        Flag.TRANSFERS_SEEN,
        Flag.UNHEARD,
    ),
)
_MAX_OUTSIDE = 1 << 15
"""Maximum number of collectives in a record outside of iterations."""
_NO_MEMORY_S = 30.0
_RETRY_S = 0.05
_MAX_LAYOUTS = 256
"""Maximum number of numbered layouts; after that, numbers are reused."""


class _CollectiveSet(NamedTuple):
    """The collectives of an iteration, in the order of a layout.

    Attributes
    ----------
    indices
        Index of each operation of the layout in the unordered operations.
    layout
        Number of the layout.
    size_bytes, tensors
        Sums over all operations.
    is_one_process_set
        Whether all operations ran in one process set.
    has_all_times
        Whether all `TIMES` of the operations are recorded.
    """

    indices: npt.NDArray[np.intp]
    layout: int
    size_bytes: int
    tensors: int
    is_one_process_set: bool
    has_all_times: bool


class _Iteration(NamedTuple):
    """Contents of an iteration's record besides its collectives; times in nanoseconds.

    Attributes
    ----------
    number
        Number of the iteration within its cell.
    spent
        Time of each `Phase` before `GAP`.
    waits
        Intervals in which training waited for communication.
    limit_bytes
        The result of `workbench.rank.recording.exchange.limit_bytes`.
    """

    number: int
    start: int
    duration: int
    spent: list[int]
    flags: int
    waits: list[Interval]
    progress: BatchProgress = NO_PROGRESS
    limit_bytes: int = UNKNOWN


class Packer:
    """Makes records of iterations, and layouts of their collectives.

    A collective belongs to the iteration that waited for the collective.

    Parameters
    ----------
    sources
        The sources of the collectives.
    world_size
        Number of ranks.
    dropped
        Returns the number of records that this rank has dropped.
    cpu_ns
        Returns the CPU time of the backend's threads so far; 0 if unknown.
    closing
        Returns whether sending has stopped, so that waiting for memory is useless.

    Attributes
    ----------
    failed
        Number of iterations that could not be packed.
    exchange
        Whether the iterations of the newest cell exchange gradients.
    """

    def __init__(
        self,
        sources: Sequence[CollectiveSource],
        world_size: int,
        dropped: Callable[[], int],
        cpu_ns: Callable[[], int] = lambda: 0,
        closing: Callable[[], bool] = lambda: False,
    ) -> None:
        self._cpu_ns = cpu_ns
        self._closing = closing
        self._sources = sources
        self._world_size = world_size
        self._dropped = dropped
        self.failed = 0
        self.exchange = CellExchange()
        self._layouts: dict[tuple[Operation, ...], int] = {}
        self._collective_sets: dict[tuple[Operation, ...], _CollectiveSet] = {}
        self._latest: tuple[tuple[Operation, ...], _CollectiveSet] | None = None
        self._lost = self._all_lost(), 0
        """Number of lost collectives, and the time of the latest loss."""

    def _all_lost(self) -> int:
        return sum(source.lost for source in self._sources)

    def __call__(self, items: Sequence[Recorded]) -> Iterator[tuple[Layout | None, bytes]]:
        """Yield the records of successive items of one kind and cell, each with its new layout."""
        iterations = [item for item in items if isinstance(item, RecordedIteration)]
        if iterations:
            yield from self._iterations(iterations)
        for item in items:
            if isinstance(item, Outside):
                yield from self._outside(item.cell, self._take(item.until))

    def _iterations(self, items: list[RecordedIteration]) -> Iterator[tuple[Layout | None, bytes]]:
        handles = [_handles(item.steps) for item in items]
        cell = items[0].cell
        first = items[0].steps[0]
        if first.flags & _FIRST_OF_CELL:  # earlier collectives, such as a broadcast of parameters
            yield from self._outside(cell, *self._take_each([first.start], handles[:1]))
        done = self._take_each([item.steps[-1].end for item in items], handles)
        yield from self._separately(cell, items, done)

    def _separately(
        self, cell: int, items: list[RecordedIteration], done: list[Collected]
    ) -> Iterator[tuple[Layout | None, bytes]]:
        """Yield the records of iterations, except iterations that cannot be packed."""
        lost = self._lost
        good = []
        try:
            packed = self._pack_all(cell, lambda: [_iteration(item) for item in items], done)
        except Exception:  # noqa: BLE001 - a bad iteration must not lose the others
            for item, collected in zip(items, done, strict=True):
                try:
                    iteration = _iteration(item)
                    list(self._packed(cell, [iteration], [collected]))
                except Exception:  # noqa: BLE001 - as above
                    self.failed += 1  # is counted first: each sent record has the number
                else:
                    good.append((iteration, collected))
            self._lost = lost
            packed = []
            self.forget_layouts()  # a new layout may not have been sent
        yield from packed
        for iteration, collected in good:
            yield from self._packed(cell, [iteration], [collected])

    def _pack_all(
        self, cell: int, iterations: Callable[[], list[_Iteration]], done: list[Collected]
    ) -> list[tuple[Layout | None, bytes]]:
        def attempt() -> list[tuple[Layout | None, bytes]]:
            try:
                return list(self._packed(cell, iterations(), done))
            except BaseException:
                self.forget_layouts()  # a new layout may not have been sent
                raise

        return self._with_memory(attempt)

    def _with_memory(self, make: Callable[[], T]) -> T:
        """Call a function, again after each MemoryError, and return the function's result.

        A cell may use all memory for a short time.

        Raises
        ------
        MemoryError
            Memory was missing for `_NO_MEMORY_S` seconds.
        """
        until = time.monotonic() + _NO_MEMORY_S
        while True:
            try:
                return make()
            except MemoryError:
                if time.monotonic() > until or self._closing():
                    raise
            time.sleep(_RETRY_S)

    def _take(self, until: int) -> Collected:
        collected = [self._with_memory(partial(source.take, until)) for source in self._sources]
        return self._with_memory(lambda: Collected.join(collected))

    def _take_each(self, untils: list[int], handles: list[Sequence[int]]) -> list[Collected]:
        collected = [
            self._with_memory(partial(source.take_each, untils, handles))
            for source in self._sources
        ]
        return self._with_memory(
            lambda: [
                Collected.join(of_source[part] for of_source in collected)
                for part in range(len(untils))
            ]
        )

    def _outside(self, cell: int | None, done: Collected) -> Iterator[tuple[Layout | None, bytes]]:
        """Yield records of the collectives that belong to no iteration."""
        if cell is None:  # this limits the loss of a layout on its way to one cell
            self.forget_layouts()
            return
        for first in range(0, len(done.operations), _MAX_OUTSIDE):
            part = slice(first, first + _MAX_OUTSIDE)
            outside = Collected(done.operations[part], done.times[:, part])
            start = int(outside.times[0].min())
            end = int(outside.times[-1].max())
            flags = int(Flag.OUTSIDE)
            iteration = _Iteration(0, start, end - start, [0] * Phase.GAP, flags, [])
            yield from self._pack_all(cell, partial(list, [iteration]), [outside])

    def _packed(
        self, cell: int, iterations: list[_Iteration], done: list[Collected]
    ) -> Iterator[tuple[Layout | None, bytes]]:
        collective_sets, layouts = zip(
            *[self._lay_out(collected.operations) for collected in done], strict=True
        )
        times = np.concatenate(
            [
                collected.times.take(collective_set.indices, axis=1) - iteration.start
                for collected, collective_set, iteration in zip(
                    done, collective_sets, iterations, strict=True
                )
            ],
            axis=1,
        )
        counts = np.array([len(collected.operations) for collected in done])
        buffers = Buffers.of(times, counts)
        records = self._records(
            cell,
            iterations,
            collective_sets,
            durations(times, buffers, [_waits(iteration) for iteration in iterations]),
        )
        yield from zip(layouts, pack_all(records, _ticks(times), buffers), strict=True)
        for iteration, record in zip(iterations, records, strict=True):
            added = int(record.flags), iteration.limit_bytes, record.size_bytes, record.tensors
            self.exchange.add(cell, *added)

    def _lay_out(self, operations: tuple[Operation, ...]) -> tuple[_CollectiveSet, Layout | None]:
        """Return the order of operations in their layout, and the layout if it is new.

        The layout has the same number for each order of the operations.
        """
        # most iterations have the same tuple: comparing identities avoids hashing the tuple
        if self._latest is None or self._latest[0] is not operations:
            if operations not in self._collective_sets:
                return self._new_collective_set(operations)
            self._latest = operations, self._collective_sets[operations]
        return self._latest[1], None

    def forget_layouts(self) -> None:
        """Send the layouts again before the next records that use them."""
        self._collective_sets.clear()
        self._layouts.clear()
        self._latest = None

    def _new_collective_set(
        self, operations: tuple[Operation, ...]
    ) -> tuple[_CollectiveSet, Layout | None]:
        indices = sorted(range(len(operations)), key=operations.__getitem__)
        key = tuple(operations[index] for index in indices)
        if (
            len(self._collective_sets) == _MAX_LAYOUTS
        ):  # sparse operations have another size each time
            self.forget_layouts()
        new = key not in self._layouts
        number = self._layouts.setdefault(key, len(self._layouts))
        collective_set = self._collective_sets[operations] = _CollectiveSet(
            np.array(indices, np.intp),
            number,
            sum(operation.size for operation in operations),
            sum(operation.tensors for operation in operations),
            len({operation.process_set for operation in operations}) <= 1,
            all(operation.library for operation in operations),
        )
        return collective_set, _layout(number, key) if new else None

    def _records(
        self,
        cell: int,
        iterations: list[_Iteration],
        collective_sets: Sequence[_CollectiveSet],
        communication_durations: Sequence[Durations],
    ) -> list[IterationRecord]:
        """Return records without the times of collectives.

        `communication_durations` is the result of `durations`.
        """
        dropped = self._dropped() + self.failed
        lost = self._all_lost()
        if lost > self._lost[0]:
            self._lost = lost, perf_counter_ns()
        cpu_ns = self._cpu_ns()
        # lost collectives may belong to any iteration that began before the loss was noticed
        loss_noticed_ns = self._lost[1]
        return [
            IterationRecord(
                cell,
                iteration.number,
                iteration.start,
                iteration.duration,
                data_ns=iteration.spent[Phase.DATA],
                copy_ns=iteration.spent[Phase.COPY],
                forward_ns=iteration.spent[Phase.FORWARD],
                backward_ns=iteration.spent[Phase.BACKWARD],
                exposed_ns=iteration.spent[Phase.EXPOSED] + iteration.spent[Phase.MESSAGES],
                messages_ns=iteration.spent[Phase.MESSAGES],
                optimizer_ns=iteration.spent[Phase.OPTIMIZER],
                other_ns=iteration.spent[Phase.OTHER],
                communication_ns=communication,
                overlapped_ns=communication - waited,
                stopped_ns=waited_for_earlier if collective_set.is_one_process_set else 0,
                transfer_ns=transfer if collective_set.has_all_times else 0,
                size_bytes=collective_set.size_bytes,
                tensors=collective_set.tensors,
                world_size=self._world_size,
                dropped=dropped,
                flags=Flag(
                    iteration.flags
                    | _UNRECORDED_COMMUNICATION * (iteration.start < loss_noticed_ns)
                    | _TRANSFERS_SEEN * collective_set.has_all_times
                ),
                layout=collective_set.layout,
                **iteration.progress._asdict(),
                communication_cpu_ns=cpu_ns,
            )
            for iteration, collective_set, (
                communication,
                waited,
                transfer,
                waited_for_earlier,
            ) in zip(iterations, collective_sets, communication_durations, strict=True)
        ]


def _handles(steps: list[StepRecord]) -> Sequence[int]:
    """Return the handles that an iteration has waited for."""
    if len(steps) == 1:
        return steps[0].handles
    return [handle for step in steps for handle in step.handles]


def _iteration(item: RecordedIteration) -> _Iteration:
    """Add up the steps of a recorded iteration."""
    steps = item.steps
    start = steps[0].start
    duration = steps[-1].end - steps[0].start
    flags = 0
    for step in steps:
        flags |= step.flags
    spans = [step.spans for step in steps if step.spans is not None]
    columns = [step.spent for step in steps]
    if len(spans) == len(steps):
        columns = [span.take() for span in spans]
        flags = flags | _DEVICE_TIMES
    spent = columns[0] if len(columns) == 1 else [sum(span) for span in zip(*columns, strict=True)]
    if (
        flags & _FORWARD_UNSEEN
    ):  # if one step lacks its forward, DATA and FORWARD of all steps are `other`
        spent[Phase.OTHER] += spent[Phase.DATA] + spent[Phase.FORWARD]
        spent[Phase.DATA] = spent[Phase.FORWARD] = 0
    if flags & _DEVICE_TIMES:
        duration = sum(spent)
    waits = [wait for step in steps for wait in step.waits]
    limit = min(step.limit_bytes for step in steps)
    return _Iteration(item.index, start, duration, spent, flags, waits, _progress(steps), limit)


def _progress(steps: list[StepRecord]) -> BatchProgress:
    """Return the samples and batch of an iteration; its steps may share one batch."""
    if len(steps) == 1:
        return steps[0].progress
    loaded = [step.progress for step in steps if step.progress.batch]
    if not loaded:  # the optimizers of a GAN train with the same tensors
        samples = max(step.progress.samples for step in steps)
        return steps[-1].progress._replace(samples=samples)
    counts = [progress.samples for progress in loaded]  # each step has loaded other batches
    return loaded[-1]._replace(samples=sum(counts) if all(counts) else 0)


def _waits(iteration: _Iteration) -> list[Interval]:
    """Return the intervals of waiting, in nanoseconds since the start of the iteration."""
    return [(begin - iteration.start, end - iteration.start) for begin, end in iteration.waits]


def _layout(number: int, key: tuple[Operation, ...]) -> Layout:
    columns = zip(*key, strict=True) if key else [()] * len(Operation._fields)
    return Layout(number, *columns)


def _ticks(times: Times) -> npt.NDArray[np.uint32]:
    """Return nanoseconds as ticks, limited to 32 bits."""
    return np.minimum(np.maximum(times // TICK_NS, 0), _LAST_TICK).astype(np.uint32)
