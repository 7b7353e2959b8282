"""Times the phases of an iteration on a GPU's stream.

The host only hands work to the stream, and is ahead of it: an event behind each
phase's work tells when the stream got there. Events are read once they have
happened, never waited for, so the figures come some iterations later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from workbench.rank.phase import Phase


class Event(Protocol):
    """What is used of ``torch.cuda.Event(enable_timing=True)``."""

    def record(self) -> None:
        """Put it into the stream behind the work that is there."""

    def query(self) -> bool:
        """Tell whether the stream has reached it; does not wait."""

    def elapsed_time(self, end_event: Event) -> float:
        """Return milliseconds to a later one; both have happened."""


class Spans:
    """The phases between two steps: which, and the event at the end of each."""

    def __init__(self, pool: deque[Event], start: Event) -> None:
        self._pool = pool
        self._start = start
        self._phases: list[Phase] = []
        self._ends: list[Event] = []
        self._loaded: dict[int, float] = {}

    def __len__(self) -> int:
        """Return how many phases have ended."""
        return len(self._phases)

    def add(self, phase: Phase, end: Event) -> None:
        """A phase has ended."""
        self._phases.append(phase)
        self._ends.append(end)

    def settle(self, phase: Phase, start: int = 0) -> None:
        """What was a gap is known to have been a phase; of those from `start` on."""
        for place, found in enumerate(self._phases[start:], start):
            if found is Phase.GAP:
                self._phases[place] = phase

    def settle_gap(self, loaded: float) -> None:
        """Of every gap so far a share of `loaded` was data loading, and the rest something else."""
        for place, found in enumerate(self._phases):
            if found is Phase.GAP:
                self._phases[place] = Phase.OTHER
                self._loaded[place] = loaded

    @property
    def end(self) -> Event:
        """The last event; the next spans start there."""
        return self._ends[-1] if self._ends else self._start

    @property
    def ready(self) -> bool:
        """Whether the stream has come to the end."""
        return self.end.query()

    def take(self) -> list[int]:
        """Return nanoseconds for each of `DATA` to `OTHER`, and give the events back."""
        spent, last = [0] * Phase.GAP, self._start
        for place, (phase, end) in enumerate(zip(self._phases, self._ends, strict=True)):
            took = round(last.elapsed_time(end) * 1e6)
            data = round(took * self._loaded.get(place, 0.0))
            spent[Phase.DATA] += data
            spent[min(phase, Phase.OTHER)] += took - data
            last = end
        self._pool.extend([self._start, *self._ends[:-1]])
        return spent


class DeviceClock:
    """Puts an event behind each phase; events are used again.

    Parameters
    ----------
    new_event
        Makes one, such as ``partial(torch.cuda.Event, enable_timing=True)``.
    """

    def __init__(self, new_event: Callable[[], Event]) -> None:
        self._new_event = new_event
        self._pool: deque[Event] = deque()

    def start(self) -> Spans:
        """Begin to time here."""
        return Spans(self._pool, self._mark())

    def mark(self, spans: Spans, phase: Phase) -> None:
        """A phase ends here."""
        spans.add(phase, self._mark())

    def follow(self, spans: Spans) -> Spans:
        """Begin to time where others have ended."""
        return Spans(self._pool, spans.end)

    def _mark(self) -> Event:
        try:
            event = self._pool.popleft()
        except IndexError:
            event = self._new_event()
        event.record()
        return event
