"""One cell at a time, in the order in which they were asked for."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from workbench.cluster.background import interrupts_later
from workbench.errors import CellInterrupted

_NOTICE_S = 1.0


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
    def held(
        self,
        ticket: object | None = None,
        what: str = "",
        interrupted: Callable[[], bool] = lambda: False,
    ) -> Iterator[None]:
        """Wait for the ticket's turn, and give it up at the end; an interrupt gives it up too.

        Parameters
        ----------
        ticket
            A new one by default: no interrupt can come between its making and here.
        what
            What waits, for the line that says so after a second; empty for none.
        interrupted
            Whether it was interrupted from another thread; checked after each `wake`.

        Raises
        ------
        CellInterrupted
            The user interrupted while it waited.
        """
        own = object() if ticket is None else ticket
        try:
            with self._moved:
                if ticket is None:
                    self._waiting.append(own)
                self._wait(own, what, interrupted)
            yield
        finally:
            with interrupts_later(), self._moved:  # a ticket left behind would block all others
                if own in self._waiting:
                    self._waiting.remove(own)
                self._moved.notify_all()

    def wake(self) -> None:
        """Have all that wait check whether they were interrupted."""
        with self._moved:
            self._moved.notify_all()

    def _wait(self, own: object, what: str, interrupted: Callable[[], bool]) -> None:
        def is_over() -> bool:
            return self._waiting[0] is own or interrupted()

        try:
            if what and not self._moved.wait_for(is_over, _NOTICE_S):
                sys.stdout.write(
                    f"{what}: waiting for the cells that were queued before. To end the one that "
                    "runs, interrupt this one, then use %cluster interrupt.\n"
                )
                sys.stdout.flush()
            self._moved.wait_for(is_over)
            if interrupted():
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise CellInterrupted(
                f"{what or 'a cell'}: interrupted while it waited for the cells that were queued "
                "before, which go on. Wait for them, or end the one that runs with "
                "%cluster interrupt."
            ) from None
