"""Records the iterations of a rank from the events that the hooks report.

Nothing here blocks the training thread: the sender's thread adds up finished iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from workbench.rank.recording.buckets import Buckets, BucketSource
from workbench.rank.recording.collectives import CollectiveSource, Reported
from workbench.rank.recording.device_clock import DeviceClock
from workbench.rank.recording.iteration import (
    CellRecords,
    Outside,
    Recorded,
    RecordedIteration,
)
from workbench.rank.recording.logged import LoggedQueue
from workbench.rank.recording.phases import PhaseClock
from workbench.rank.recording.training_loop import TrainingLoop
from workbench.rank.recording.waits import Waits
from workbench.wire import Flag

_PROFILED = int(Flag.PROFILED)
_UNHEARD = int(Flag.UNHEARD)


class Recorder:
    """Records the cells of a rank, one after the other.

    Parameters
    ----------
    poll
        Returns whether the collective of a handle is done; raises ValueError if the handle
        was cleared.
    deliver
        Called with each `Recorded` object; must not block.
    device
        See the attribute.

    Attributes
    ----------
    sources
        The sources of the times of collectives.
    loop, waits, records
        The training loop of the current cell, its waits for communication, and the records
        that it has delivered; other threads read them too.
    bucket_sources
        The sources of the buckets of DDP models; they are read at the end of a backward.
    failures
        The reason why a kind of recording has stopped, by kind.
    used_while_off
        Whether a communication hook has called the recorder since this was set to False.
    device
        Measures the phases on the GPU's stream; None if there is no GPU.
    profiling
        Whether the current iteration is profiled, so that its record gets a flag.
    at_iteration
        Called at the end of each iteration, in the thread that trains; None to call nothing.
    logged
        The values that the cell has logged with its iterations.
    members
        The ranks of each process set that was used, by its number. Horovod itself does not
        answer while its thread waits for other ranks.
    """

    loop: TrainingLoop
    waits: Waits
    records: CellRecords

    def __init__(
        self,
        poll: Callable[[Any], bool | int],
        deliver: Callable[[Recorded], None],
        device: DeviceClock | None = None,
    ) -> None:
        self._poll = poll
        self._receiver = deliver
        self.device = device
        self.failures: dict[str, str] = {}
        self.used_while_off = False
        self.profiling = False
        self.at_iteration: Callable[[], None] | None = None
        self.reported = Reported()
        self.sources: list[CollectiveSource] = [self.reported]
        self.bucket_sources: list[BucketSource] = []
        self.logged = LoggedQueue()
        self.members: dict[int, tuple[int, ...]] = {}
        self._start_cell(0)

    def failed(self, kind: str, error: Exception) -> None:
        """Note that a kind of recording has stopped; any thread may call this."""
        self.failures[kind] = f"{type(error).__name__}: {error}"

    @property
    def capturing(self) -> bool:
        """Whether a CUDA graph is captured; no event may be used during that time."""
        return self.device is not None and self.device.capturing

    @property
    def on(self) -> bool:
        """Whether anything is recorded.

        If nothing is recorded, functions that could not be restored and communication hooks of
        DDP models may still report events. These events are discarded.
        """
        return self.reported.on

    @on.setter
    def on(self, on: bool) -> None:
        self.reported.on = on

    def begin_cell(self, cell: int) -> None:
        """Start recording a cell."""
        self.logged.clear()
        self._deliver(Outside(None))
        self._start_cell(cell)

    def _start_cell(self, cell: int) -> None:
        clock = PhaseClock(self.device)
        self.records = CellRecords(cell, self._deliver, self._iteration_ended)
        self.waits = Waits(clock, self._poll, self.records.add_outside)
        buckets = Buckets(self.reported, self.bucket_sources)
        self.loop = TrainingLoop(clock, buckets, self.waits, self.records)

    def end_cell(self) -> None:
        """Deliver the remaining iterations."""
        self.loop.end()

    def log(self, values: Mapping[str, Any]) -> None:
        """Log values with the current iteration, if anything is recorded."""
        if self.on:
            self.logged.add(self.records.cell, self.loop.mark, values)

    def _deliver(self, recorded: Recorded) -> None:
        if self.profiling and isinstance(recorded, RecordedIteration):
            recorded.steps[-1].flags |= _PROFILED
        if self.failures and isinstance(recorded, RecordedIteration):
            recorded.steps[-1].flags |= _UNHEARD
        if self.on:
            self._receiver(recorded)

    def _iteration_ended(self) -> None:
        if self.at_iteration is not None:
            self.at_iteration()
