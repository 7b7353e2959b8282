"""Measures the phases of an iteration on a GPU's stream.

The CPU queues work on the stream and does not wait for it. An event after the work of each
phase records when the stream has reached it. An event is read after that, possibly several
iterations later, so that no thread waits for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from workbench.rank.recording.phase import Phase


class Event(Protocol):
    """The methods of ``torch.cuda.Event(enable_timing=True)`` that are used."""

    def record(self) -> None:
        """Queue the event on the stream."""

    def query(self) -> bool:
        """Return whether the stream has reached the event, without waiting."""

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds until a later event; both must have been reached."""


class Spans:
    """The phases between two optimizer steps, and the event at the end of each."""

    def __init__(self, clock: DeviceClock, start: Event) -> None:
        self._clock = clock
        self._start = start
        self._phases: list[Phase] = []
        self._ends: list[Event] = []
        self._spent: list[int] | None = None

    def __len__(self) -> int:
        """Return how many phases have ended."""
        return len(self._phases)

    def add(self, phase: Phase, end: Event) -> None:
        """Add a phase that has ended."""
        self._phases.append(phase)
        self._ends.append(end)

    def assign(self, old: Phase, new: Phase, start: int = 0, stop: int | None = None) -> None:
        """Count the spans ``[start:stop]`` of the phase `old` as phase `new`."""
        for index, phase in enumerate(self._phases[start:stop], start):
            if phase is old:
                self._phases[index] = new

    @property
    def end(self) -> Event:
        """The last event, where the next spans start."""
        return self._ends[-1] if self._ends else self._start

    @property
    def ready(self) -> bool:
        """Whether the stream has reached the last event; False while a graph is captured."""
        with self._clock.asking:
            return not self._clock.capturing and self.end.query()

    def take(self) -> list[int]:
        """Return the nanoseconds of each phase before `GAP`; the first call frees the events."""
        if self._spent is not None:
            return self._spent.copy()
        spent = [0] * Phase.GAP
        last = self._start
        for phase, end in zip(self._phases, self._ends, strict=True):
            spent[min(phase, Phase.OTHER)] += round(last.elapsed_time(end) * 1e6)
            last = end
        # phases of a captured graph have no event of their own
        events = {id(event): event for event in (self._start, *self._ends)}
        del events[id(self.end)]
        self._clock.pool.extend(events.values())
        self._spent = spent
        return spent.copy()


class DeviceClock:
    """Records an event after each phase, and reuses events.

    While any thread captures a CUDA graph, an event can neither be recorded nor queried: the call
    or the capture would fail. The phases of the capture then take no time.

    Parameters
    ----------
    new_event
        Creates an event, such as ``partial(torch.cuda.Event, enable_timing=True)``.

    Attributes
    ----------
    pool
        Events that can be recorded again.
    capturing
        Whether a graph is captured. Hold `asking` to set it, because another thread may query.
    asking
        Held while an event is queried.
    """

    def __init__(self, new_event: Callable[[], Event]) -> None:
        self._new_event = new_event
        self.pool: deque[Event] = deque()
        self.capturing = False
        self.asking = threading.Lock()

    def start(self) -> Spans | None:
        """Start to measure phases; None while a graph is captured."""
        return None if self.capturing else Spans(self, self.record())

    def mark(self, spans: Spans, phase: Phase, event: Event | None = None) -> None:
        """Add a phase that ends now, or at an event that was recorded."""
        spans.add(phase, event or (spans.end if self.capturing else self.record()))

    def follow(self, spans: Spans) -> Spans:
        """Start to measure at the end of other spans."""
        return Spans(self, spans.end)

    def record(self, event: Event | None = None) -> Event:
        """Record a new or reused event after the work that is queued on the stream now."""
        if event is None:
            try:
                event = self.pool.popleft()
            except IndexError:
                event = self._new_event()
        event.record()
        return event
