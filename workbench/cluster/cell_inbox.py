"""What the ranks send about one cell, until the cell processes it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from workbench.cluster.processes import acknowledge
from workbench.wire import Message
from workbench.wire.prompt_messages import InputRequest
from workbench.wire.rank_messages import CellEnded, CellMessage, Output, RankState
from workbench.wire.wakeup import SignalSafeEvent

_TICK_S = 0.05

CellEvent = Output | CellEnded | InputRequest


class CellInbox:
    """The messages about one cell: any thread puts them, the cell's thread takes them.

    Parameters
    ----------
    send
        Sends a message to a rank.

    Attributes
    ----------
    ended
        The ranks whose end has arrived, whether or not it has been taken.
    """

    def __init__(self, send: Callable[[int, Message], None]) -> None:
        self.ended: set[int] = set()
        self._send = send
        self._putting = threading.Lock()
        self._closed = False
        self._events: deque[tuple[int, CellEvent]] = deque()
        self._answers: deque[tuple[int, RankState]] = deque()
        """Answers of ranks, taken before output, which can be large."""
        self._marks: dict[int, Output] = {}
        """The latest output of each rank that has to be confirmed."""
        self._arrived = SignalSafeEvent()

    def put(self, rank: int, message: CellMessage) -> bool:
        """Keep a message from a rank, in any thread; return False if the inbox is closed."""
        with self._putting:
            if self._closed:
                return False
            if isinstance(message, RankState):
                self._answers.append((rank, message))
            else:
                self._events.append((rank, message))
            if isinstance(message, CellEnded):
                self.ended.add(rank)
            self._arrived.set()
            return True

    def wake(self) -> None:
        """End a `wait` of the cell's thread, or its next one."""
        self._arrived.set()

    def wait(self) -> None:
        """Wait a short time for a message."""
        self._arrived.wait(_TICK_S)

    def take_answers(self) -> list[tuple[int, RankState]]:
        """Return the answers of ranks that have arrived."""
        return [self._answers.popleft() for _ in range(len(self._answers))]

    def take_event(self) -> tuple[int, CellEvent]:
        """Return the next message that is no answer; `has_events` must be true."""
        rank, message = self._events.popleft()
        if isinstance(message, Output) and message.total_characters is not None:
            self._marks[rank] = message
        return rank, message

    @property
    def has_events(self) -> bool:
        """Whether `take_event` would return a message."""
        return bool(self._events)

    def waiting(self) -> set[int]:
        """Return the ranks with messages that are not taken, besides answers."""
        with self._putting:
            return {rank for rank, _ in self._events}

    def confirm(self) -> None:
        """Confirm the output that was taken, so that ranks can write more."""
        while self._marks:
            acknowledge(self._send, *self._marks.popitem())

    def close(self) -> list[tuple[int, CellEvent]]:
        """Keep no further messages; return those that were not taken, without answers."""
        with self._putting:
            self._closed, events = True, list(self._events)
            self._events.clear()
        return events
