"""Records a cell's waits for communication, with their collectives."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns, sleep
from typing import Any, NamedTuple

from workbench.rank.recording.phase import Phase
from workbench.rank.recording.phases import PhaseClock

WATCH_SHARE = 1 / 64
"""A wait sleeps for this share of its duration so far between two polls."""
WATCH_MAX_S = 0.0005
"""Maximum sleep between two polls."""
LIMIT = 1 << 15
"""Maximum number of waits, and of handles, that are kept without a step."""


class Blocked(NamedTuple):
    """The collective that a rank waits for.

    Attributes
    ----------
    name
        Its name; empty if only its handle is known.
    since
        When the wait began, as ``time.perf_counter_ns()``.
    process_set
        Horovod's number of its process set; 0 is all ranks.
    handle
        The backend's handle; None for a call without a tensor.
    """

    name: str
    since: int
    process_set: int = 0
    handle: Hashable = None


class Waits:
    """The waits of one cell, which the hooks of a backend report.

    Parameters
    ----------
    poll
        Returns whether the collective of a handle is done; raises ValueError if the handle
        was cleared.
    full
        Called after `LIMIT` waits without a step.

    Attributes
    ----------
    blocked
        The collective that the rank currently waits for, or None; other threads read it.
    handles
        The collectives that the rank has waited for; after `LIMIT` of them, call `discard`.
    calls
        Number of calls without a tensor, such as barriers, by process set.
    """

    def __init__(
        self, clock: PhaseClock, poll: Callable[[Any], bool | int], full: Callable[[], None]
    ) -> None:
        self._clock = clock
        self._poll = poll
        self._full = full
        self._exposed = 0
        self._exposed_since = 0
        self._intervals: list[tuple[int, int]] = []
        self._wait_exposes = False
        self.handles = array("q")
        self.calls: dict[int, int] = {}
        self.blocked: Blocked | None = None

    def take(self) -> tuple[list[tuple[int, int]], array[int]]:
        """Return the exposed waits since the previous call, and the handles waited for."""
        intervals = self._intervals
        self._intervals = []
        handles = self.handles
        self.handles = array("q")
        return intervals, handles

    def exposed_begins(self, phase: Phase = Phase.EXPOSED) -> None:
        """Note that training begins to wait for gradients or messages; calls may nest."""
        self._exposed += 1
        if self._exposed == 1:
            self._exposed_since = perf_counter_ns()
            self._clock.push(phase, self._exposed_since)

    def exposed_ends(self) -> None:
        """Note that training no longer waits."""
        self._exposed -= 1
        if self._exposed == 0:
            now = perf_counter_ns()
            self._clock.pop(now)
            self.exposed_between(self._exposed_since, now)

    def exposed_between(self, began: int, ended: int) -> None:
        """Note a finished wait for communication; the clock already has its phase."""
        self._intervals.append((began, ended))
        if len(self._intervals) >= LIMIT:
            self.discard()

    @contextmanager
    def blocking_call(self, name: str, process_set: int = 0) -> Iterator[None]:
        """Note that the body waits for the ranks of a process set, in a call without a tensor.

        Parameters
        ----------
        name
            The call, such as ``"barrier()"``.
        """
        self.calls[process_set] = self.calls.get(process_set, 0) + 1
        self.blocked = Blocked(name, perf_counter_ns(), process_set)
        try:
            yield
        finally:
            self.blocked = None

    @contextmanager
    def wait(self, handle: Hashable) -> Iterator[None]:
        """Wait until a collective is done; the body then clears its handle.

        Horovod's own wait polls without sleeping. It would use a core that Horovod's threads or a
        DataLoader may need.
        """
        # `blocking_call` may have set a name
        self.blocked = self.blocked or Blocked("", perf_counter_ns(), handle=handle)
        if not self._exposed:
            self._wait_exposes = True
            self.exposed_begins()
        try:
            self._watch(handle)
            yield
        finally:
            self.blocked = None
            if self._wait_exposes:
                self._wait_exposes = False
                self.exposed_ends()

    def discard(self) -> None:
        """Discard all waits and handles, because too many have accumulated without a step."""
        self.take()
        self._full()

    def done(self, handle: Hashable) -> bool:
        """Return whether a collective is done, or its handle cleared."""
        try:
            return bool(self._poll(handle))
        except ValueError:
            return True

    def _watch(self, handle: Hashable) -> None:
        wait_with_pauses(lambda: self.done(handle))


def wait_with_pauses(done: Callable[[], bool]) -> None:
    """Wait until a function returns True, and release the core between its calls.

    Examples
    --------
    >>> answers = iter([False, False, True])
    >>> wait_with_pauses(lambda: next(answers))
    """
    began = now = perf_counter_ns()
    while not done():
        sleep(min((now - began) * WATCH_SHARE * 1e-9, WATCH_MAX_S))
        now = perf_counter_ns()
