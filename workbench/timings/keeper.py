"""A thread that has a run written about once a second."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.timings.writer import RunWriter

PERIOD_S = 1.0
_END_S = 5.0


class Keeper:
    """Has a run written down, and never makes anybody wait for a disk without end.

    Parameters
    ----------
    make
        Called in the thread, for it loads what takes a while to load; returns
        None while there is nothing to write.
    say
        Called, in the thread, with what goes wrong: once for each kind of fault.
    """

    def __init__(self, make: Callable[[], RunWriter | None], say: Callable[[str], None]) -> None:
        self._say = say
        self._make = make
        self._writer: RunWriter | None = None
        self._said: set[tuple[type, int | None]] = set()
        self._asked = 0
        self._done = 0
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="workbench-run", daemon=True)
        self._thread.start()

    def flush(self, timeout_s: float) -> bool:
        """Have all written that is there now; return whether that was done in time."""
        with self._changed:
            if self._asked > self._done:
                timeout_s = 0.0  # a disk that has not answered is not waited for again
            self._asked += 1
            mine = self._asked
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._done >= mine, timeout_s)

    def close(self) -> None:
        """Write the rest, end the files, and stop; a disk that hangs is left alone."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(_END_S)

    def _run(self) -> None:
        closing = False
        while not closing:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._asked > self._done, PERIOD_S)
                closing, asked = self._closing, self._asked
            self._try(self._write)
            with self._changed:
                self._done = asked
                self._changed.notify_all()
        self._try(self._close)

    def _write(self) -> None:
        if self._writer is None:
            self._writer = self._make()
        if self._writer is not None:
            self._writer.write()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - training and view go on, whatever a disk does
            kind = type(error), getattr(error, "errno", None)
            if kind in self._said:
                return
            self._said.add(kind)
            where = f" in {self._writer.path}" if self._writer is not None else ""
            self._say(
                f"this run is not being written down{where}: {error}; training and the live view "
                "go on, and what memory holds is written as soon as that is possible"
            )
