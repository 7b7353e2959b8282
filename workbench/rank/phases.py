"""Where the time of an iteration goes: one phase at any moment.

What happens between two steps before the first forward is known only
afterwards: the time that a DataLoader took is data loading if a training
forward follows; the rest is `other`, and so is all of it where a step or an
evaluation follows. It is kept as a gap until then.
"""

from __future__ import annotations

from workbench.rank.device_clock import DeviceClock, Spans
from workbench.rank.phase import Phase
from workbench.wire import Flag

_BEFORE_FORWARD, _BEFORE_STEP = int(Flag.OTHER_BEFORE_FORWARD), int(Flag.OTHER_BEFORE_STEP)


class PhaseClock:
    """Adds up nanoseconds per phase; `now` is ``time.perf_counter_ns()`` throughout.

    The first window of a cell begins with the batch that was loaded for it, or
    with its first forward, backward or step: what a cell does before it trains
    is no iteration. Each further window begins where the one before ended.

    Parameters
    ----------
    device
        Times the same phases on the GPU's stream; None where there is no GPU.

    Attributes
    ----------
    start_ns
        Where the present window begins.
    forward_unseen
        A backward came without a module's forward before it.
    begun
        The window has begun.
    first
        The window is the first of its cell.
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
        self._spent = [0] * len(Phase)
        self._since = start
        self._phase = Phase.GAP
        self._home = Phase.GAP
        self._outer: list[Phase] = []
        self._before_forward = 0
        self._before_step = 0
        self._forget_gap()

    def _forget_gap(self) -> None:
        self._loader_ns = 0
        self._loader_began = 0
        self._unsure_forward = 0
        self._unsure_span = 0

    def loaded(self, began: int, now: int) -> None:
        """A DataLoader has given the batch that it was asked for at `began`."""
        if self._phase is Phase.GAP:
            if not self._loader_began or not self.begun:
                self._loader_began = began
                self._loader_ns = 0
            self._loader_ns += now - began

    def forward(self, now: int) -> None:
        """A training forward begins: what a DataLoader took of the gap was data loading."""
        self._mark(now)
        if self._phase is self._home:
            self._settle_before_forward()
            self._phase = Phase.FORWARD

    def maybe_forward(self, now: int) -> None:
        """A module in eval mode is called with gradients on.

        Fine-tuning does that, and a careless evaluation too: a backward tells.
        """
        if self._phase is self._home:
            self._unsure_forward = now
            if self._spans is not None and self._device is not None:
                self._device.mark(self._spans, self._phase)
                self._unsure_span = len(self._spans)

    def evaluated(self, now: int) -> None:
        """A forward without gradients has ended: the gap so far was none of training's."""
        if not self.begun:
            self._forget_gap()
        elif self._phase is Phase.GAP:
            self._mark(now)
            self._settle()

    def backward(self, now: int) -> None:
        """A backward begins; `backward_ended` ends it."""
        self._mark(now)
        if self._phase is self._home:
            self._settle_before_backward(now)
        self._phase = Phase.BACKWARD

    def backward_ended(self, now: int) -> None:
        """A backward has ended."""
        self._mark(now)
        self._phase = self._home

    def step(self, now: int) -> None:
        """An optimizer's step begins: the gap before it was no data loading."""
        self._mark(now)
        self._before_step += self._settle()
        self._phase = self._home = Phase.OPTIMIZER
        self._outer.clear()

    def step_ended(self, now: int) -> tuple[int, list[int], Spans | None]:
        """End the window; return its start, nanoseconds for `DATA` to `OTHER`, the GPU's spans."""
        self._mark(now)
        self._settle()
        start, spent, spans = self.start_ns, self._spent[: Phase.GAP], self._spans
        self.first = False
        self._restart(now)
        if spans is not None and self._device is not None:
            self._spans = self._device.follow(spans)
        return start, spent, spans

    @property
    def place_of_other(self) -> int:
        """Where most of the window's `other` lies, as far as that is known: a `Flag`, or 0."""
        half = (self._spent[Phase.OTHER] + self._spent[Phase.GAP]) // 2
        if self._before_forward > half:
            return _BEFORE_FORWARD
        return _BEFORE_STEP if self._before_step > half else 0

    def no_step(self, now: int) -> None:
        """The step that has begun had no gradients: it ends no window."""
        if self.first:
            self._restart(0)
            self._spans = None
            return
        self._mark(now)
        self._phase = self._home = Phase.GAP

    def push(self, phase: Phase, now: int) -> None:
        """Enter a phase from which `pop` returns."""
        if self.begun:
            self._mark(now)
        self._outer.append(self._phase)
        self._phase = phase

    def pop(self, now: int) -> None:
        """Return to the phase before the last `push`."""
        if self.begun:
            self._mark(now)
        if self._outer:
            self._phase = self._outer.pop()

    def _mark(self, now: int) -> None:
        if not self.begun:
            self.begun = True
            self.start_ns = self._since = self._loader_began or self._unsure_forward or now
            self._spans = None if self._device is None else self._device.start()
        elif self._spans is not None and self._device is not None:
            self._device.mark(self._spans, self._phase)
        self._spent[self._phase] += now - self._since
        self._since = now

    def _settle(self, loaded_ns: int = 0) -> int:
        """Count the gap as `other`, but for what was loaded; return the nanoseconds of `other`."""
        gap = self._spent[Phase.GAP]
        data = min(loaded_ns, gap)
        self._spent[Phase.DATA] += data
        self._spent[Phase.OTHER] += gap - data
        self._spent[Phase.GAP] = 0
        if self._spans is not None:
            # the GPU stood still for all of it; at which end of the gap, nobody knows
            self._spans.settle_gap(data / gap if gap else 0.0)
        self._forget_gap()
        return gap - data

    def _settle_before_forward(self) -> None:
        self._before_forward += self._settle(self._loader_ns)

    def _settle_before_backward(self, now: int) -> None:
        """No training forward was seen: was it one in eval mode, or none at all?"""
        if not self._unsure_forward:
            self.forward_unseen = True
            self._settle()
            return
        forward = min(now - self._unsure_forward, self._spent[self._phase])
        self._spent[self._phase] -= forward
        self._spent[Phase.FORWARD] += forward
        if self._spans is not None:
            self._spans.settle(Phase.FORWARD, self._unsure_span)
        self._settle_before_forward()
