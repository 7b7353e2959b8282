"""One cell at a time, in the order in which they were asked for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


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
    def held(self, ticket: object) -> Iterator[None]:
        """Wait for the ticket's turn, and give it up at the end; an interrupt gives it up too."""
        try:
            with self._moved:
                self._moved.wait_for(lambda: self._waiting[0] is ticket)
            yield
        finally:
            with self._moved:
                self._waiting.remove(ticket)
                self._moved.notify_all()
