"""Adds up the time of each phase of an iteration; at each moment there is one phase.

The time between a step and the next forward is called a gap, and its phase is determined later.
A gap is `other`, unless a later backward shows that it contains the forward of a model in eval
mode. The time in a loader is data loading wherever the loop asks for a batch. At the end of the
window, it becomes `other` if the batch was used for an evaluation.
"""

from __future__ import annotations

from workbench.rank.recording.device_clock import DeviceClock, Event, Spans
from workbench.rank.recording.loads import LoaderCall
from workbench.rank.recording.phase import Phase
from workbench.wire import Flag

_BEFORE_FORWARD = int(Flag.OTHER_BEFORE_FORWARD)
_BEFORE_STEP = int(Flag.OTHER_BEFORE_STEP)
# looking a member up in its enumeration takes longer than most of the methods below
_DATA = Phase.DATA
_FORWARD = Phase.FORWARD
_BACKWARD = Phase.BACKWARD
_EXPOSED = Phase.EXPOSED
_OPTIMIZER = Phase.OPTIMIZER
_OTHER = Phase.OTHER
_GAP = Phase.GAP
_NOTHING = [0] * len(Phase)
_MAX_LOADS = 1024
"""Maximum number of loader calls whose use is determined only at the end of the window."""


class PhaseClock:
    """Adds up nanoseconds per phase; `now` is always a ``time.perf_counter_ns()``.

    A window is the time between two optimizer steps. The first window of a cell begins with
    its first batch, forward, backward or step, because time before training is no iteration.

    Parameters
    ----------
    device
        Measures the same phases on the GPU's stream; None if there is no GPU.

    Attributes
    ----------
    start_ns
        Begin of the current window.
    forward_unseen
        Whether a backward has begun without a forward of a module before it.
    begun
        Whether the window has begun.
    first
        Whether it is the first window of the cell.
    """

    def __init__(self, device: DeviceClock | None = None) -> None:
        self.first = True
        self._device = device
        self._spans: Spans | None = None
        self._restart(0)

    def _restart(self, start: int) -> None:
        self.start_ns = start
        self.forward_unseen = False
        self.begun = not self.first
        self._spent = _NOTHING.copy()
        self._since = start
        self._phase = _GAP
        self._default = _GAP
        self._stack: list[Phase] = []
        self._submitted = 0
        self._submitted_event: Event | None = None
        self._before_forward = 0
        self._before_step = 0
        self._loads: list[LoaderCall] = []
        self._possible_forward = 0
        self._possible_gap = 0
        self._possible_span = 0

    @property
    def in_no_phase(self) -> bool:
        """Whether the window has begun, and its time now is `other`."""
        return self.begun and self._phase is _GAP and not self._possible_forward

    @property
    def since(self) -> int:
        """Time of the latest event, or 0."""
        return self._since

    def load_begins(self, load: LoaderCall, now: int) -> None:
        """Begin a call of a loader."""
        load.began_ns = now
        if self.begun:
            self.push(_DATA, now)
            load.in_window = True
            load.spent_ns = -self._spent[_DATA]
            first = 0 if self._spans is None else len(self._spans)
            load.spans = first, first

    def load_ends(self, load: LoaderCall, now: int) -> None:
        """End a call of a loader."""
        if load.in_window:
            self.pop(now)
            load.spent_ns = max(0, load.spent_ns + self._spent[_DATA])
            load.spans = load.spans[0], 0 if self._spans is None else len(self._spans)
        else:
            load.spent_ns = now - load.began_ns
        self._loads.append(load)
        if len(self._loads) > _MAX_LOADS:
            self._assign(self._loads.pop(0))

    def forward(self, now: int) -> None:
        """Begin a training forward."""
        self._mark(now)
        if self._phase is self._default:
            self._end_gap_before_forward()
            self._phase = _FORWARD

    def maybe_forward(self, now: int) -> None:
        """Note the call of a module in eval mode with gradients enabled.

        The call is a training forward, for example of fine-tuning, only if a backward follows.
        """
        if self._phase is self._default:
            self._possible_forward = now
            if self.begun:
                self._mark(now)
                self._possible_gap = self._spent[self._phase]
                self._possible_span = 0 if self._spans is None else len(self._spans)

    def evaluated(self, now: int) -> None:
        """Note the end of a forward without gradients: the gap before it is `other`."""
        if not self.begun:
            self._possible_forward = 0
        elif self._phase is _GAP and not self._possible_forward:
            self._mark(now)
            self._end_gap()

    def backward(self, now: int) -> None:
        """Begin a backward."""
        self._mark(now)
        if self._phase is self._default:
            self._end_gap_before_backward()
        self._phase = _BACKWARD

    def bucket_submitted(self, now: int) -> None:
        """Note that a backward has submitted a bucket of gradients, possibly its last."""
        if self._phase is _BACKWARD:
            self._submitted = now
            if self._spans is not None and self._device is not None:
                self._submitted_event = self._device.record(self._submitted_event)

    def backward_ended(self, now: int) -> int:
        """End a backward; return when its final wait for buckets began, or 0."""
        submitted = self._submitted
        self._submitted = 0
        event = self._submitted_event
        self._submitted_event = None
        waited_since = 0
        if submitted and self._phase is _BACKWARD:
            # a phase within the backward may have ended since
            waited_since = max(submitted, self._since)
            if waited_since == submitted:
                self._end_span(event)
            self._spent[_BACKWARD] += waited_since - self._since
            self._since = waited_since
            self._phase = _EXPOSED
        self._mark(now)
        self._phase = self._default
        return waited_since

    def step(self, now: int) -> None:
        """Begin an optimizer's step; the gap before it is `other`, except before a closure."""
        self._mark(now)
        if self._spent[_FORWARD] or self._spent[_BACKWARD]:
            self._before_step += self._end_gap()
        else:  # no training since the last step, so that this step has a closure that trains
            self._end_gap_before_forward()
        self._phase = self._default = _OPTIMIZER
        self._stack.clear()

    def step_ended(self, now: int) -> tuple[int, list[int], Spans | None]:
        """End the window; return its start, the time of each phase, and the GPU's spans."""
        self._mark(now)
        self._end_gap()
        start = self.start_ns
        spent = self._spent[:_GAP]
        spans = self._spans
        self.first = False
        self._restart(now)
        if self._device is not None:  # spans are missing if a graph was captured at the start
            device = self._device
            self._spans = device.start() if spans is None else device.follow(spans)
        return start, spent, spans

    def assign_loads(self) -> None:
        """Count the loading for evaluations as `other`, at the end of the window."""
        for load in self._loads:
            self._assign(load)
        self._loads.clear()

    @property
    def place_of_other(self) -> int:
        """The `Flag` for the part of the window with more than half of `other`, or 0."""
        half = (self._spent[_OTHER] + self._spent[_GAP]) // 2
        if self._before_forward > half:
            return _BEFORE_FORWARD
        return _BEFORE_STEP if self._before_step > half else 0

    def no_step(self, now: int) -> None:
        """Continue the window after a step without gradients."""
        if self.first:
            self._restart(0)
            self._spans = None
            return
        self._mark(now)
        self._phase = self._default = _GAP

    def push(self, phase: Phase, now: int) -> None:
        """Begin a phase within the current one."""
        if self.begun:
            self._mark(now)
        self._stack.append(self._phase)
        self._phase = phase

    def pop(self, now: int) -> None:
        """Return to the phase before the latest `push`."""
        if self.begun:
            self._mark(now)
        if self._stack:
            self._phase = self._stack.pop()

    def _mark(self, now: int) -> None:
        if not self.begun:
            self._begin(now)
            return
        self._end_span()
        self._spent[self._phase] += now - self._since
        self._since = now

    def _end_span(self, event: Event | None = None) -> None:
        """End the current phase on the GPU's stream, now or at an event."""
        if self._spans is not None and self._device is not None:
            self._device.mark(self._spans, self._phase, event)

    def _begin(self, now: int) -> None:
        """Begin the first window, including the loading of its batches."""
        self.begun = True
        self._spans = None if self._device is None else self._device.start()
        loads = [load for load in self._loads if not load.is_for_evaluation]
        trained = {id(load.source) for load in loads if load.trained}
        if trained:
            loads = [load for load in loads if id(load.source) in trained]
        possible = self._possible_forward
        start = min(loads[0].began_ns if loads else now, possible or now)
        self._loads = [load for load in self._loads if load.began_ns >= start]
        data = sum(load.spent_ns for load in self._loads)
        within = sum(load.spent_ns for load in self._loads if load.began_ns >= possible)
        self.start_ns = start
        self._since = now
        self._spent[_DATA] = data
        self._spent[self._phase] += now - start - data
        self._possible_gap = self._spent[self._phase] - (now - possible - within)

    def _assign(self, load: LoaderCall) -> None:
        """Count a load as `other` if its batch was used for an evaluation."""
        if not (self.begun and load.is_for_evaluation):
            return
        self._spent[_DATA] -= load.spent_ns
        self._spent[_OTHER] += load.spent_ns
        if self._spans is not None:
            self._spans.assign(_DATA, _OTHER, *load.spans)

    def _end_gap(self) -> int:
        """Count the gap as `other`; return its nanoseconds."""
        spent = self._spent
        gap = spent[_GAP]
        spent[_OTHER] += gap
        spent[_GAP] = 0
        if self._spans is not None:
            self._spans.assign(_GAP, _OTHER)
        self._possible_forward = 0
        return gap

    def _end_gap_before_forward(self) -> None:
        self._before_forward += self._end_gap()

    def _end_gap_before_backward(self) -> None:
        """Assign the gap and a possible forward in eval mode; a training forward is missing."""
        if not self._possible_forward:
            self.forward_unseen = True
            self._end_gap()
            return
        forward = max(0, self._spent[self._phase] - self._possible_gap)
        self._spent[self._phase] -= forward
        self._spent[_FORWARD] += forward
        if self._spans is not None:
            self._spans.assign(_GAP, _FORWARD, self._possible_span)
        self._end_gap_before_forward()
