"""SIGINT for the code of the cell that is meant, and for nothing else that the main thread does.

While it handles a request, ipykernel lets SIGINT raise KeyboardInterrupt, and
drops the request for it. What a cell leaves to do, and the requests after it,
must not be dropped: whoever waits for their answers would wait for ever.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ANY_CELL = -1
"""Stands for whatever cell runs: a kernel that came later does not know its number."""


class Interrupts:
    """Which cell runs, and whether the main thread may be interrupted in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cell: int | None = None
        self._asked: int | None = None
        self._open = False

    @property
    def cell(self) -> int | None:
        """The cell that runs, or None."""
        return self._cell

    def interrupt(self, cell: int) -> None:
        """Raise KeyboardInterrupt in a cell's code: now, or once it begins; never after it."""
        with self._lock:
            if cell == ANY_CELL and self._cell is not None:
                cell = self._cell
            self._asked = cell
            if cell == self._cell and self._open:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    @contextmanager
    def cell_runs(self, number: int) -> Iterator[None]:
        """Run a cell in the body: nothing is interrupted but what is `allowed` in it."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._cell = number
        try:
            yield
        finally:
            self._cell = None
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Let an interrupt of the cell that runs raise KeyboardInterrupt in the body."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with self._lock:
                self._open, asked = True, self._asked == self._cell
            if asked:
                raise KeyboardInterrupt
            yield
        finally:
            while True:
                try:
                    with self._lock:
                        self._open = False
                    signal.signal(signal.SIGINT, signal.SIG_IGN)  # raises what is under way
                    break
                except KeyboardInterrupt:  # too late: the body has ended
                    continue

    def end_cell(self) -> None:
        """The cell's code has run; what is left to do for it is no cell's."""
        self._cell = None
