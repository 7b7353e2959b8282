"""One record per iteration: takes the hooks' events, hands over what an iteration was.

Nothing here blocks the training thread: the arithmetic of a finished iteration
is left to the sender's thread (`pack`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol

from workbench.rank.collectives import Collected, Collectives, Operation
from workbench.rank.cycle import Cycle
from workbench.rank.device_clock import DeviceClock, Spans
from workbench.rank.phase import Phase
from workbench.rank.phases import PhaseClock
from workbench.wire import Flag

# numbers: an enumeration's members take longer to join, and this is between two iterations
_FIRST_OF_CELL, _FORWARD_UNSEEN, _UNHEARD = map(
    int, (Flag.FIRST_OF_CELL, Flag.FORWARD_UNSEEN, Flag.UNHEARD)
)


_IN_BACKWARD = -1
"""Stands for all optimizers that stepped within one backward."""


class Finishing(Hashable, Protocol):
    """A bucket under way; `finished` is 0 until it is known when it was."""

    finished: int


@dataclass
class Part:
    """What led to one optimizer step; all times as ``time.perf_counter_ns()``."""

    start: int
    end: int
    spent: list[int]
    flags: int
    collectives: Collected
    waits: list[tuple[int, int]]
    spans: Spans | None = None


@dataclass(frozen=True)
class Iteration:
    """A finished iteration, not yet added up."""

    cell: int
    index: int
    parts: list[Part] = field(repr=False)

    @property
    def ready(self) -> bool:
        """Whether all of its times can be read: a GPU has come to its end."""
        spans = self.parts[-1].spans
        return spans is None or spans.ready


class Blocked(NamedTuple):
    """The collective that a rank waits for.

    Attributes
    ----------
    name
        Empty where its submission was not heard.
    since
        When the wait began, as ``time.perf_counter_ns()``.
    process_set
        The number of its process set; 0 for all ranks.
    handle
        Horovod's, by which it is negotiated where it has no name.
    """

    name: str
    since: int
    process_set: int = 0
    handle: Hashable = None


@dataclass(frozen=True)
class Outside:
    """Collectives that a cell ran outside its iterations."""

    cell: int
    collectives: Collected
    ready = True


class Recorder:
    """Turns the events of one rank into iterations.

    Parameters
    ----------
    poll
        Tells whether a Horovod handle is done.
    deliver
        Called with each finished `Iteration`, and with what is `Outside`; must not block.
    device
        Times the phases on the GPU's stream; None where there is no GPU.

    Attributes
    ----------
    submitted
        A collective was handed to Horovod: ``Collectives.submit``.
    done
        Tells whether a wait for a handle needs no note: ``Collectives.done``.
    members
        The ranks of each process set that was used, by its number. Horovod knows them as well,
        but does not answer while its thread waits for other ranks.
    """

    def __init__(
        self,
        poll: Callable[[Any], bool | int],
        deliver: Callable[[Iteration | Outside], None],
        device: DeviceClock | None = None,
    ) -> None:
        self._deliver = deliver
        self._device = device
        self._collectives = Collectives(poll, self._deliver_outside)
        self.submitted = self._collectives.submit
        self.done = self._collectives.done
        self.members: dict[int, tuple[int, ...]] = {}
        self.begin_cell(0)

    # the cell

    def begin_cell(self, cell: int) -> None:
        """Start to count the iterations of a cell."""
        self._cell = cell
        self._index = 0
        self._cycle: Cycle[Part] = Cycle()
        self._clock = PhaseClock(self._device)
        self._delivered = 0
        self._collectives.clear()
        self._steps: list[int] = []
        self._backwards = 0
        self._stepped_in_backward = False
        self._trained = False
        self._unheard = False
        self._buckets: list[Finishing] = []
        self._waits_for_buckets = False
        self._exposed = 0
        self._exposed_since = 0
        self._waits: list[tuple[int, int]] = []
        self._wait_exposes = False
        self._blocked: Blocked | None = None
        self._waits_in: dict[int, int] = {}

    def end_cell(self) -> int:
        """Deliver what is left, and return how many records the cell has."""
        self._finish(self._cycle.end())
        self._deliver_outside(self._collectives.take())
        return self._delivered

    @property
    def iterations(self) -> int:
        """How many iterations of the cell have ended."""
        return self._index

    @property
    def outstanding(self) -> int:
        """Collectives submitted and never waited for: an error left them behind."""
        return self._collectives.outstanding

    @property
    def calls(self) -> dict[int, int]:
        """How many collectives, barriers and the like the cell has called, by process set."""
        calls = self._collectives.calls
        for number, count in self._waits_in.copy().items():
            calls[number] = calls.get(number, 0) + count
        return calls

    def under_way(self) -> list[str]:
        """Return the names of collectives that are not done and not waited for; in any thread."""
        return self._collectives.under_way()

    @property
    def blocked(self) -> Blocked | None:
        """The collective that the rank waits for and since when, or None."""
        return self._blocked

    # the training loop

    def loaded(self, began: int) -> None:
        """A DataLoader has given the batch that it was asked for at `began`."""
        self._clock.loaded(began, perf_counter_ns())

    def forward_begins(self, *, training: bool, grad: bool) -> None:
        """An outermost module is called, in training mode or not, with gradients on or not."""
        if grad and training:
            self._clock.forward(perf_counter_ns())
        elif grad:
            self._clock.maybe_forward(perf_counter_ns())

    def forward_ends(self, *, grad: bool) -> None:
        """The outermost module has returned or raised."""
        if not grad:
            self._clock.evaluated(perf_counter_ns())

    def backward_begins(self) -> None:
        """``torch.autograd.backward`` was called; it may nest (checkpointing does)."""
        self._backwards += 1
        self._trained = True
        if self._backwards == 1:
            self._clock.backward(perf_counter_ns())

    def backward_ends(self, *, raised: bool = False) -> None:
        """``torch.autograd.backward`` returned or raised."""
        self._backwards -= 1
        if raised:  # some parameters were stepped and some not
            self._stepped_in_backward = False
        if self._backwards == 0:
            self._end_of_buckets()
            for bucket in self._buckets:
                self._collectives.waited(bucket, bucket.finished)
            self._buckets.clear()
            now = perf_counter_ns()
            self._clock.backward_ended(now)
            if self._stepped_in_backward:
                self._stepped_in_backward = False
                self._clock.step(now)
                self._finish(self._cycle.step(_IN_BACKWARD, self._take_part(now)))

    def gradients_begin(self, *, goes_on: bool) -> None:
        """``torch.autograd.grad`` was called: a backward, whose gradients the script gets itself.

        The forward `goes_on` behind it where a graph of the gradients is kept, for a penalty.
        """
        if self._backwards or not goes_on:
            self.backward_begins()
        else:
            self._trained = True
            self._clock.push(Phase.BACKWARD, perf_counter_ns())

    def gradients_end(self, *, goes_on: bool) -> None:
        """``torch.autograd.grad`` returned or raised."""
        if self._backwards:
            self.backward_ends()
        elif goes_on:
            self._clock.pop(perf_counter_ns())

    def step_begins(self, optimizer: int, *, whole: bool = False) -> None:
        """A step hook fired; Horovod's optimizers fire twice, one within the other.

        Parameters
        ----------
        whole
            Within a backward, such as in a hook of a parameter's gradient, this is a step of
            its own, and the end of that backward is one of all such optimizers. Otherwise the
            step is a piece of one that comes after the backward, as Adasum's are.
        """
        if self._backwards:
            if whole:
                self._stepped_in_backward = True
                self._clock.push(Phase.OPTIMIZER, perf_counter_ns())
            return
        # an optimizer nests in itself once: anything else means that a step raised
        if len(self._steps) == 2 or (self._steps and self._steps[0] != optimizer):
            self._steps.clear()
        self._steps.append(optimizer)
        if len(self._steps) == 1:
            self._clock.step(perf_counter_ns())

    def step_ends(self, optimizer: int, *, whole: bool = False) -> None:
        """A step hook fired at a step's end; `whole` as for its begin."""
        if self._backwards and whole:
            self._clock.pop(perf_counter_ns())
        if self._backwards or not self._steps:
            return
        self._steps.pop()
        if self._steps:
            return
        now = perf_counter_ns()
        if self._trained or self._collectives.of_optimizers:
            self._finish(self._cycle.step(optimizer, self._take_part(now)))
        else:
            # hvd.broadcast_optimizer_state steps once, with zeros, to have a state at all
            self._clock.no_step(now)

    def cleaning_begins(self) -> None:
        """``zero_grad`` was called: the optimizer's work wherever it stands."""
        self._clock.push(Phase.OPTIMIZER, perf_counter_ns())

    def cleaning_ends(self) -> None:
        """``zero_grad`` returned."""
        self._clock.pop(perf_counter_ns())

    # the communication

    def copy_begins(self) -> None:
        """A tensor is copied from the host to a device."""
        self._clock.push(Phase.COPY, perf_counter_ns())

    def copy_ends(self) -> None:
        """The copy has returned; a GPU may still be at it."""
        self._clock.pop(perf_counter_ns())

    def exposed_begins(self) -> None:
        """Training stands still for gradients from here on; may nest."""
        self._exposed += 1
        if self._exposed == 1:
            self._exposed_since = perf_counter_ns()
            self._clock.push(Phase.EXPOSED, self._exposed_since)

    def exposed_ends(self) -> None:
        """Training goes on."""
        self._exposed -= 1
        if self._exposed == 0:
            now = perf_counter_ns()
            self._waits.append((self._exposed_since, now))
            self._clock.pop(now)

    def bucket_submitted(
        self, operation: Operation, bucket: Finishing, began: int, *, last: bool
    ) -> None:
        """DDP has handed over a bucket; the backward waits for all of them behind the last."""
        self._end_of_buckets()  # it was not the last: another model's follow
        self.submitted(operation, bucket, began)
        self._buckets.append(bucket)
        if last and self._backwards:
            self._waits_for_buckets = True
            self.exposed_begins()

    def unheard(self) -> None:
        """A collective was called that nothing here can time; one of a bucket's hook is no such."""
        if self._clock.begun and not self._buckets:
            self._unheard = True

    def _end_of_buckets(self) -> None:
        if self._waits_for_buckets:
            self._waits_for_buckets = False
            self.exposed_ends()

    @contextmanager
    def waits_in(self, name: str, process_set: int = 0) -> Iterator[None]:
        """Note that the body waits for other ranks, in a call that moves no tensor.

        Parameters
        ----------
        name
            What is called.
        process_set
            The number of the process set it waits for; all ranks by default.
        """
        self._waits_in[process_set] = self._waits_in.get(process_set, 0) + 1
        self._blocked = Blocked(name, perf_counter_ns(), process_set)
        try:
            yield
        finally:
            self._blocked = None

    def wait(self, handle: Hashable) -> None:
        """A wait for a handle begins; returns once it is done, where its submission was heard."""
        place = self._collectives.find(handle)
        now = perf_counter_ns()
        if place is None:
            self._blocked = self._blocked or Blocked("", now)  # `waits_in` knows it better
        elif not self._collectives.see(place, now):
            operation = self._collectives.operation(place)
            self._blocked = Blocked(operation.name, now, operation.process_set, handle)
        if not self._exposed:
            self._wait_exposes = True
            self.exposed_begins()
        try:
            self._collectives.watch(handle)
        except BaseException:  # interrupted: the collective stays outstanding
            self._wait_ended()
            raise

    def waited(self, handle: Hashable) -> None:
        """The wait returned or raised, and the handle is cleared."""
        self._collectives.waited(handle)
        self._wait_ended()

    def _wait_ended(self) -> None:
        self._blocked = None
        if self._wait_exposes:
            self._wait_exposes = False
            self.exposed_ends()

    def _take_part(self, now: int) -> Part:
        first = self._clock.first
        flags = self._clock.place_of_other
        if first:
            flags |= _FIRST_OF_CELL
        if self._clock.forward_unseen:
            flags |= _FORWARD_UNSEEN
        if self._unheard:
            flags |= _UNHEARD
            self._unheard = False
        start, spent, spans = self._clock.step_ended(now)
        # one backward may feed several optimizers, of which this one waited for its own
        done = self._collectives.take()
        if first:  # the parameters' broadcast is none of the iteration
            before, done = done.split(start)
            self._deliver_outside(before)
        waits, self._waits = self._waits, []
        self._trained = False
        return Part(start, now, spent, flags, done, waits, spans)

    def _finish(self, iterations: list[list[Part]]) -> None:
        for parts in iterations:
            self._deliver(Iteration(self._cell, self._index, parts))
            self._index += 1
            self._delivered += 1

    def _deliver_outside(self, collectives: Collected) -> None:
        if collectives.submitted:
            self._deliver(Outside(self._cell, collectives))
            self._delivered += 1
