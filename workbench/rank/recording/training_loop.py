"""Divides the training of a cell into iterations, from the events that the hooks report."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Generic, TypeVar

from workbench.rank.recording.batches import Batches
from workbench.rank.recording.buckets import Buckets, PendingBucket
from workbench.rank.recording.collectives import Operation
from workbench.rank.recording.exchange import UNKNOWN
from workbench.rank.recording.iteration import CellRecords, StepRecord
from workbench.rank.recording.loads import LoaderCall
from workbench.rank.recording.logged import Mark
from workbench.rank.recording.phase import Phase
from workbench.rank.recording.phases import PhaseClock
from workbench.rank.recording.waits import Waits
from workbench.wire import Flag

if TYPE_CHECKING:
    import torch

# integers, because combining members of an enumeration is slow
_FIRST_OF_CELL, _FORWARD_UNSEEN, _UNHEARD = map(
    int, (Flag.FIRST_OF_CELL, Flag.FORWARD_UNSEEN, Flag.UNHEARD)
)
_IN_BACKWARD = -1
"""Represents all optimizers that stepped within one backward."""


Step = TypeVar("Step")


class Cycle(Generic[Step]):
    """Groups optimizer steps into iterations, for any number of optimizers.

    The first iteration ends before an optimizer steps for the second time. A later one ends
    when all optimizers of the previous iteration have stepped, or before one steps again. Thus
    the two steps of a GAN are one iteration. If its critic steps several times per step of the
    generator, each step of the critic is an iteration.

    Examples
    --------
    >>> cycle = Cycle()
    >>> cycle.step(1, "generator step")
    []
    >>> cycle.step(2, "critic step")
    []
    >>> cycle.step(1, "generator step 2")
    [['generator step', 'critic step']]
    """

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._stepped: set[int] = set()
        self._expected: set[int] = set()

    def step(self, optimizer: int, record: Step) -> list[list[Step]]:
        """Add a step of an optimizer; return the iterations that this completes."""
        complete = []
        if optimizer in self._stepped:
            complete.append(self._take())
        self._steps.append(record)
        self._stepped.add(optimizer)
        if self._expected and self._stepped >= self._expected:
            complete.append(self._take())
        return complete

    def end(self) -> list[list[Step]]:
        """Return the last iteration, if one has begun, and reset the order of optimizers."""
        complete = [self._take()] if self._steps else []
        self._expected = set()
        return complete

    def _take(self) -> list[Step]:
        steps = self._steps
        self._steps = []
        self._expected = self._stepped
        self._stepped = set()
        return steps


class TrainingLoop:
    """Divides the events of one cell into iterations.

    Attributes
    ----------
    clock
        The times of the phases of the current step.
    steps
        Number of optimizer steps that have ended.
    buckets
        Collectives of torch.distributed that have not finished.
    limits_bytes
        The `exchange.limit_bytes` of each optimizer that has stepped, by its `id`.
    """

    def __init__(
        self, clock: PhaseClock, buckets: Buckets, waits: Waits, records: CellRecords
    ) -> None:
        self.clock = clock
        self._waits = waits
        self._records = records
        self._cycle: Cycle[StepRecord] = Cycle()
        self._steps: list[int] = []
        self._backwards = 0
        self._backward_began = 0
        self._stepped_in_backward = False
        self._trained = False
        self._unheard = False
        self._began = False
        """Whether a training forward has begun since the last step."""
        self._mark = self._last_mark = Mark()
        self._cell_thread = get_ident()
        self._thread: int | None = None
        """The thread that trains; None while it is unknown."""
        self._loading: LoaderCall | None = None
        """The call of a loader that has not ended."""
        self.buckets = buckets
        self._batches = Batches()
        self.limits_bytes: dict[int, int] = {}
        self.steps = 0

    @property
    def mark(self) -> Mark:
        """The iteration in progress; between a step and the next forward, the previous one."""
        return self._mark if self._began or self._trained else self._last_mark

    @property
    def in_backward(self) -> bool:
        """Whether a backward runs."""
        return self._backwards > 0

    def end(self) -> None:
        """Deliver the remaining records at the end of the cell."""
        self.buckets.take()
        self.buckets.find_done()
        self._records.add(self._cycle.end())
        self._records.add_outside()

    # PyTorch

    def load_begins(self, iterator: object = None) -> LoaderCall | None:
        """Note a call of a loader; return an object for `load_ends`.

        Return None for a call that is not noted. A nested call is not noted, because the loop gets
        the batch of the outer call. A call in another thread is not noted either, because training
        does not wait for it.

        Parameters
        ----------
        iterator
            The iterator of the batch; None if the call creates an iterator.
        """
        if self._loading is not None or not self.is_training_thread():
            return None
        load = self._loading = LoaderCall(self._batches.source(iterator))
        self.clock.load_begins(load, perf_counter_ns())
        return load

    def load_ends(self, load: LoaderCall, iterator: object = None, *batch: object) -> None:
        """Note the end of a loader's call, and the batch that it has returned, if any."""
        self._loading = None
        self.clock.load_ends(load, perf_counter_ns())
        if batch:
            self._batches.loaded(batch[0], iterator, load)

    def iterator_made(self, load: LoaderCall, iterator: object) -> None:
        """Note that a finished call has created an iterator or has begun another pass."""
        load.source = self._batches.source(iterator, begins=True)

    def loader_ended(self, load: LoaderCall) -> None:
        """Note that there was no further batch."""
        load.source.ended = True

    def copied(self, original: torch.Tensor, copy: torch.Tensor) -> None:
        """Note that a tensor was copied to a device."""
        if self.is_training_thread():
            self._batches.copied(original, copy)

    def forward_begins(
        self,
        *,
        training: bool,
        grad: bool,
        model: int = 0,
        arguments: object = (),
        options: object = None,
    ) -> None:
        """Note the call of an outermost module, its mode, and whether gradients are enabled.

        `model` is the module's `id`. `arguments` are the positional and `options` the keyword
        arguments.
        """
        if self._loading is not None or not self.is_training_thread(claims=grad and training):
            return
        now = perf_counter_ns()
        if grad and training:
            in_step = bool(self._steps)
            self._batches.forward(model, arguments, options, in_step=in_step)
            self.clock.forward(now)
            self._began = True
        elif grad:
            self._batches.maybe_forward(arguments, options)
            self.clock.maybe_forward(now)
        else:
            self._batches.evaluated(arguments, options)

    def forward_ends(self, *, grad: bool) -> None:
        """Note the end of the call of an outermost module."""
        if not grad and self._loading is None and self.is_training_thread():
            self.clock.evaluated(perf_counter_ns())

    def is_training_thread(self, *, claims: bool = False) -> bool:
        """Return whether this thread trains, by the information so far.

        Parameters
        ----------
        claims
            Whether the thread has made a call that is typical of training. The thread then counts
            as the training thread until another thread runs a backward.
        """
        thread = get_ident()
        if claims and self._thread is None:
            self._thread = thread
        return thread == (self._thread or self._cell_thread)

    def backward_begins(self) -> None:
        """Note a call of ``torch.autograd.backward``; calls nest in checkpointing."""
        self._backwards += 1
        if not self._trained:
            self._thread = get_ident()
        self._trained = True
        if self._backwards == 1:
            self._batches.backward()
            self._backward_began = perf_counter_ns()
            self.clock.backward(self._backward_began)

    def backward_ends(self, *, raised: bool = False) -> None:
        """Note the end of a call of ``torch.autograd.backward``."""
        self._backwards -= 1
        if raised:  # only some parameters were updated
            self._stepped_in_backward = False
        if self._backwards == 0:
            submitted = self.buckets.take()
            if submitted > self._backward_began:  # otherwise a joined rank has submitted it
                self.clock.bucket_submitted(submitted)
            now = self.buckets.backward_ended()
            waited_since = self.clock.backward_ended(now)
            if waited_since:
                self._waits.exposed_between(waited_since, now)
            if self._stepped_in_backward:
                self._stepped_in_backward = False
                self.clock.step(now)
                self._records.add(self._cycle.step(_IN_BACKWARD, self._take_step(now)))

    def bucket_submitted(
        self, describe: Callable[[], Operation], began: int, bucket: PendingBucket
    ) -> None:
        """Note that DDP has submitted a bucket at `began`.

        After the last bucket of a backward, the backward only waits for its buckets.
        """
        if self._backwards:
            self.clock.bucket_submitted(perf_counter_ns())
            self.buckets.submitted(describe, began, bucket)
        else:  # a joined rank submits buckets, but no longer trains
            self.buckets.follow(describe(), began, bucket)

    def gradients_begin(self, *, goes_on: bool) -> None:
        """Note a call of ``torch.autograd.grad``, which is a backward.

        With `goes_on`, the call keeps a graph of the gradients, as for a gradient penalty, and
        the forward continues afterwards.
        """
        if self._backwards or not goes_on:
            self.backward_begins()
        else:
            self._trained = True
            self.clock.push(Phase.BACKWARD, perf_counter_ns())

    def gradients_end(self, *, goes_on: bool) -> None:
        """Note the end of a call of ``torch.autograd.grad``."""
        if self._backwards:
            self.backward_ends()
        elif goes_on:
            self.clock.pop(perf_counter_ns())

    def in_step_of_another(self, optimizer: int) -> bool:
        """Return whether another optimizer's step has begun; the step may have raised since."""
        return bool(self._steps) and self._steps[0] != optimizer

    def step_begins(
        self, optimizer: int, *, complete: bool = False, within: bool = False, began: int = 0
    ) -> None:
        """Note the begin of a step; Horovod's optimizers report two nested steps.

        Parameters
        ----------
        complete
            Whether a step within a backward, such as in a hook of a gradient, is complete. The
            end of the backward then ends a step of all these optimizers. The steps of Adasum
            within a backward are not complete: they belong to a step after the backward.
        within
            Whether another optimizer, such as ZeroRedundancyOptimizer, calls this step in its own.
        began
            The earliest begin of the step, if it is noted later; 0 for now.
        """
        if self._backwards:
            if complete:
                self._stepped_in_backward = True
                self.clock.push(Phase.OPTIMIZER, perf_counter_ns())
            return
        # at most two nested steps: otherwise an earlier step has raised
        if len(self._steps) == 2 or (self.in_step_of_another(optimizer) and not within):
            self._steps.clear()
        self._steps.append(optimizer)
        if len(self._steps) == 1:
            self.clock.step(max(began, self.clock.since) if began else perf_counter_ns())

    def step_ends(self, optimizer: int, *, complete: bool = False) -> None:
        """Note the end of a step."""
        if self._backwards and complete:
            self.clock.pop(perf_counter_ns())
        if self._backwards or not self._steps:
            return
        self._steps.pop()
        if self._steps:
            return
        self.buckets.find_done()  # before the end, so that the buckets belong to this iteration
        now = perf_counter_ns()
        if self._trained:
            step = self._take_step(now)
            step.limit_bytes = self.limits_bytes.get(optimizer, UNKNOWN)
            self._records.add(self._cycle.step(optimizer, step))
        else:
            # hvd.broadcast_optimizer_state runs a step with zeros, to create the state
            self.clock.no_step(now)

    def compiled_step(self, function: int) -> None:
        """Note the end of a compiled function that trains; its phases are unknown."""
        now = perf_counter_ns()
        self.clock.step(now)
        self._records.add(self._cycle.step(function, self._take_step(now, compiled=True)))

    def reduces_gradients(self) -> None:
        """Note that an optimizer waits for gradients: the following step trains."""
        self._trained = True

    def enter(self, phase: Phase) -> bool:
        """Begin a call that always belongs to one phase, such as ``zero_grad`` or a copy.

        Return True if the caller must call `leave`; False in a thread that does not train.
        """
        if not self.is_training_thread():
            return False
        self.clock.push(phase, perf_counter_ns())
        return True

    def leave(self) -> None:
        """End the phase of `enter`; a GPU may still execute the work of the call."""
        self.clock.pop(perf_counter_ns())

    def note_unheard(self) -> None:
        """Note that collectives run that cannot be timed."""
        if self.clock.begun:
            self._unheard = True

    def _take_step(self, now: int, *, compiled: bool = False) -> StepRecord:
        self.steps += 1
        progress = self._batches.take()
        self.clock.assign_loads()
        flags = _FORWARD_UNSEEN if compiled else self.clock.place_of_other
        if self.clock.first:
            flags |= _FIRST_OF_CELL
        if self._unheard:
            flags |= _UNHEARD
            self._unheard = False
        unseen = self.clock.forward_unseen
        start, spent, spans = self.clock.step_ended(now)
        if unseen and not spent[Phase.FORWARD]:  # otherwise a loss may have a second backward
            flags |= _FORWARD_UNSEEN
        self._trained = self._began = False
        mark = self._mark
        self._last_mark = mark
        self._mark = Mark()
        return StepRecord(start, now, spent, flags, *self._waits.take(), spans, progress, mark)
