"""One cell at a time, in the order in which they were asked for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from workbench.cluster.background import interrupts_later


class Turns:
    """A lock whose holders take turns in the order of their tickets."""

    def __init__(self) -> None:
        self._waiting: deque[object] = deque()
        self._moved = threading.Condition()

    def ticket(self) -> object:
        """Queue up, without waiting."""
        ticket = object()
        with self._moved:
            self._waiting.append(ticket)
        return ticket

    @contextmanager
    def held(self, ticket: object | None = None) -> Iterator[None]:
        """Wait for the ticket's turn, and give it up at the end; an interrupt gives it up too.

        Parameters
        ----------
        ticket
            A new one by default: no interrupt can come between its making and here.
        """
        own = object() if ticket is None else ticket
        try:
            with self._moved:
                if ticket is None:
                    self._waiting.append(own)
                self._moved.wait_for(lambda: self._waiting[0] is own)
            yield
        finally:
            with interrupts_later(), self._moved:  # a ticket left behind would block all others
                if own in self._waiting:
                    self._waiting.remove(own)
                self._moved.notify_all()
