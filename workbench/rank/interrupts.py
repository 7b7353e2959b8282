"""SIGINT for the code of the cell that is meant, and for nothing else that the main thread does.

While it handles a request, ipykernel lets SIGINT raise KeyboardInterrupt, and
drops the request for it. What a cell leaves to do, and the requests after it,
must not be dropped: whoever waits for their answers would wait for ever.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

ANY_CELL = -1
"""Stands for whatever cell runs: a kernel that came later does not know its number."""
_AGAIN_S = 0.02


class Interrupts:
    """Which cell runs, whether the main thread may be interrupted in it, and what came of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cell: int | None = None
        self._asked: int | None = None
        self._open = False
        self._ending = False
        self._sent = 0
        self._raised = 0
        self._raised_at = 0.0

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
                self._sent += 1
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def stage(self) -> dict[str, Any]:
        """Return what an interrupt of the cell has come to, from any thread.

        ``stage`` is one of

        - ``"ending"``: the cell's code has ended, its error or value is made ready;
        - ``"ignored"``: the cell's code has replaced the handler of SIGINT;
        - ``"raised"``: KeyboardInterrupt was raised, and the cell's code goes on;
        - ``"pending"``: Python has not come to raise it yet;
        - ``"running"``: the cell was not interrupted;
        - ``""``: no cell runs.

        ``raised_s`` tells how long ago KeyboardInterrupt was raised.
        """
        with self._lock:
            raised_s = time.monotonic() - self._raised_at if self._raised else 0.0
            return {"stage": self._stage(), "raised_s": raised_s}

    def _stage(self) -> str:
        if self._cell is None:
            return ""
        if self._ending:
            return "ending"
        if not self._sent:
            return "running"
        if self._raised >= self._sent:
            return "raised"
        ours = signal.getsignal(signal.SIGINT) == self._raise
        return "pending" if ours or not self._open else "ignored"

    @contextmanager
    def cell_runs(self, number: int) -> Iterator[None]:
        """Run a cell in the body: nothing is interrupted but what is `allowed` in it."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._sent = self._raised = 0
        self._ending = False
        self._cell = number
        try:
            yield
        finally:
            self._cell = None
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def allowed(self, *, earlier: bool = True) -> Iterator[None]:
        """Let an interrupt of the cell that runs raise KeyboardInterrupt in the body.

        Parameters
        ----------
        earlier
            At once, where the cell was interrupted before.
        """
        signal.signal(signal.SIGINT, self._raise)
        usual, sys.unraisablehook = sys.unraisablehook, self._unraisable
        try:
            with self._lock:
                self._open, asked = True, earlier and self._asked == self._cell
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
            if sys.unraisablehook == self._unraisable:
                sys.unraisablehook = usual

    def begin_to_end(self) -> None:
        """The cell's code has ended: what follows is the rank's own work for it."""
        self._ending = True

    def end_cell(self) -> None:
        """The cell's code has run; what is left to do for it is no cell's."""
        self._cell = None

    def _raise(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGINT, as Python itself does by default."""
        self._raised = self._sent = max(self._sent, 1)
        self._raised_at = time.monotonic()
        signal.default_int_handler(number, frame)

    def _unraisable(self, unraisable: Any) -> None:
        """Raise an interrupt again that a destructor or a callback could not pass on."""
        if not isinstance(unraisable.exc_value, KeyboardInterrupt):
            sys.__unraisablehook__(unraisable)
            return
        # later: raised at once it would be lost in here as well
        timer = threading.Timer(_AGAIN_S, self._send_again)
        timer.daemon = True
        timer.start()

    def _send_again(self) -> None:
        with self._lock:
            if self._open:
                self._sent += 1
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
