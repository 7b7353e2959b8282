"""Gives back what nobody uses: ends a cluster that has run no cell for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from workbench.cluster.durations import parse_duration


class IdleWatch:
    """Calls `release` once nothing was `used` for a time.

    Parameters
    ----------
    after
        As `parse_duration` reads it; None for never.
    release
        Called, in a thread, with the time in words.
    """

    def __init__(self, after: str | float | None, release: Callable[[str], None]) -> None:
        self._after_s = float("inf") if after is None else parse_duration(after, "release_after")
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
