"""The messages of the ranks about one cell, until the cell processes them."""

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
    """The messages about one cell. Any thread can put them; the cell's thread takes them.

    Parameters
    ----------
    send
        Sends a message to a rank.

    Attributes
    ----------
    ended
        The ranks that have reported the end of the cell, even if the report was not taken yet.

    Examples
    --------
    >>> inbox = CellInbox(lambda rank, message: None)
    >>> inbox.put(1, InputRequest(cell=7, number=1, kind="input", prompt="Continue? "))
    True
    >>> inbox.waiting(), inbox.take_event()[0], inbox.has_events
    ({1}, 1, False)
    """

    def __init__(self, send: Callable[[int, Message], None]) -> None:
        self.ended: set[int] = set()
        self._send = send
        self._putting = threading.Lock()
        self._closed = False
        self._events: deque[tuple[int, CellEvent]] = deque()
        self._answers: deque[tuple[int, RankState]] = deque()
        """Answers of ranks. They are taken before output, because output can be large."""
        self._unconfirmed: dict[int, Output] = {}
        """The latest output of each rank that has to be confirmed."""
        self._arrived = SignalSafeEvent()

    def put(self, rank: int, message: CellMessage) -> bool:
        """Store a message from a rank, in any thread; return False if the inbox is closed."""
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
        """End the current `wait` of the cell's thread, or its next one."""
        self._arrived.set()

    def wait(self) -> None:
        """Wait a short time for a message."""
        self._arrived.wait(_TICK_S)

    def take_answers(self) -> list[tuple[int, RankState]]:
        """Return and remove the answers of ranks that have arrived."""
        return [self._answers.popleft() for _ in range(len(self._answers))]

    def take_event(self) -> tuple[int, CellEvent]:
        """Return and remove the next message besides answers; `has_events` must be true."""
        rank, message = self._events.popleft()
        if isinstance(message, Output) and message.total_characters is not None:
            self._unconfirmed[rank] = message
        return rank, message

    @property
    def has_events(self) -> bool:
        """Whether `take_event` would return a message."""
        return bool(self._events)

    def waiting(self) -> set[int]:
        """Return the ranks with messages that were not taken yet, besides answers."""
        with self._putting:
            return {rank for rank, _ in self._events}

    def confirm(self) -> None:
        """Confirm the taken output to the ranks, so that they can write more."""
        while self._unconfirmed:
            acknowledge(self._send, *self._unconfirmed.popitem())

    def close(self) -> list[tuple[int, CellEvent]]:
        """Refuse further messages; return the messages that were not taken, without answers."""
        with self._putting:
            self._closed = True
            events = list(self._events)
            self._events.clear()
        return events
