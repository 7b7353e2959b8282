"""Gives back what nobody uses: ends a cluster that has run no cell for a while."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable

from workbench.errors import UsageError

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(text: str | float) -> float:
    """Return a time such as ``"30m"``, ``"90s"``, ``"2h"`` or a number of seconds.

    Raises
    ------
    UsageError
        It is none, or not above 0.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", str(text))
    value = float(found[1]) * _UNITS[found[2] or "s"] if found else 0.0
    if value <= 0:
        raise UsageError(f"a time of {text!r} was asked for: write it as 90s, 30m or 2h")
    return value


class IdleWatch:
    """Calls `release` once nothing was `used` for a time.

    Parameters
    ----------
    after
        As `seconds` reads it; None for never.
    release
        Called, in a thread, with the time in words.
    """

    def __init__(self, after: str | float | None, release: Callable[[str], None]) -> None:
        self._after_s = float("inf") if after is None else seconds(after)
        self._text = f"{self._after_s:g} s" if isinstance(after, int | float) else str(after)
        self._release = release
        self._stopped = threading.Event()
        self._used = 0.0

    def start(self) -> None:
        """Begin to watch."""
        if self._after_s == float("inf"):
            return
        self._stopped = threading.Event()
        self.used()
        threading.Thread(
            target=self._watch, args=(self._stopped,), name="workbench-idle", daemon=True
        ).start()

    def used(self) -> None:
        """Begin anew to count."""
        self._used = time.monotonic()

    def stop(self) -> None:
        """Watch no longer."""
        self._stopped.set()

    def _watch(self, stopped: threading.Event) -> None:
        while not stopped.wait(max(0.05, self._used + self._after_s - time.monotonic())):
            if time.monotonic() - self._used >= self._after_s:
                self._release(self._text)
