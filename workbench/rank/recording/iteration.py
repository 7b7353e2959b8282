"""Recorded iterations of a rank; `pack` makes the records to send."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns

from workbench.rank.recording.batches import NO_PROGRESS, BatchProgress
from workbench.rank.recording.device_clock import Spans
from workbench.rank.recording.logged import Mark


@dataclass
class StepRecord:
    """The recording between two optimizer steps; times as ``time.perf_counter_ns()``.

    `handles` identify the collectives that the rank has waited for. `progress` is the result of
    `Batches.take`. `mark` gets the number of the iteration when the iteration ends.
    `limit_bytes` is defined in `workbench.rank.recording.exchange`.
    """

    start: int
    end: int
    spent: list[int]
    flags: int
    waits: list[tuple[int, int]]
    handles: Sequence[int]
    spans: Spans | None = None
    progress: BatchProgress = NO_PROGRESS
    mark: Mark = field(default_factory=Mark)
    limit_bytes: int = -1


@dataclass(frozen=True)
class RecordedIteration:
    """A finished iteration, with a `StepRecord` for each of its optimizer steps."""

    cell: int
    index: int
    steps: list[StepRecord] = field(repr=False)

    @property
    def ready(self) -> bool:
        """Whether the GPU has executed all work, so that all times can be read."""
        spans = self.steps[-1].spans
        return spans is None or spans.ready


@dataclass(frozen=True)
class Outside:
    """A moment: the collectives that finished before it belong to no later iteration.

    Attributes
    ----------
    cell
        Number of the cell of these collectives; None if they belong to no cell.
    """

    cell: int | None
    until: int = field(default_factory=perf_counter_ns)
    ready = True


Recorded = RecordedIteration | Outside
"""Type of the objects that the sender receives, in the order of time."""


class CellRecords:
    """Numbers and delivers the iterations of one cell, and calls `ended` after each.

    Attributes
    ----------
    cell
        Number of the cell.
    iterations
        Number of iterations that have ended.
    """

    def __init__(
        self, cell: int, deliver: Callable[[Recorded], None], ended: Callable[[], None]
    ) -> None:
        self.cell = cell
        self._deliver = deliver
        self._ended = ended
        self.iterations = 0

    def add(self, iterations: list[list[StepRecord]]) -> None:
        """Deliver iterations, each as a list of its steps."""
        for steps in iterations:
            for step in steps:
                step.mark.index = self.iterations
            self._deliver(RecordedIteration(self.cell, self.iterations, steps))
            self.iterations += 1
            self._ended()

    def add_outside(self) -> None:
        """Deliver the collectives until now that belong to no iteration."""
        self._deliver(Outside(self.cell))
