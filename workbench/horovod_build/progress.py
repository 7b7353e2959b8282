"""Progress display of a build."""

from __future__ import annotations

import re
import sys
import threading
import time
from typing import TextIO

_PERCENT = re.compile(r"^\[\s*(\d{1,3})%\]")
_STEP_PERCENT = 10
_REFRESH_S = 0.5
_REFRESH_LOG_S = 60.0


class Progress:
    """Shows the progress of a build.

    On a terminal this is one line that is updated in place; otherwise, a line is printed every
    10 % and every minute. Use it as a context manager around the build: a thread updates the
    elapsed time while the compiler prints nothing.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._started = time.monotonic()
        self._step = ""
        self._percent = 0
        self._shown_percent = 0
        self._lock = threading.Lock()
        self._finished = threading.Event()
        self._clock = threading.Thread(target=self._tick, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        self._clock.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._finished.set()
        self._clock.join()
        self._clear()

    def step(self, text: str) -> None:
        """Start a step, such as "compiling, 2 in parallel"."""
        with self._lock:
            self._step = text
            self._percent = 0
            self._shown_percent = 0
        self._show()

    def print_line(self, text: str) -> None:
        """Print a line that stays on the screen."""
        self._clear()
        self._write(f"{text}\n")

    def log_line(self, line: str) -> None:
        """Update the percentage from a line of the build's log, such as CMake's ``[ 42%]``."""
        match = _PERCENT.match(line)
        if match is None:
            return
        with self._lock:
            # Each target counts from 0; the percentage must not decrease.
            self._percent = max(self._percent, int(match[1]))
        if self._terminal or self._percent >= self._shown_percent + _STEP_PERCENT:
            self._shown_percent = self._percent - self._percent % _STEP_PERCENT
            self._show()

    def _tick(self) -> None:
        while not self._finished.wait(_REFRESH_S if self._terminal else _REFRESH_LOG_S):
            self._show()

    def _show(self) -> None:
        line = self._line()
        if self._terminal:
            self._write(f"\r\x1b[K{line}")
        else:
            self._write(f"{line}\n")

    def _line(self) -> str:
        with self._lock:
            percent = f" {self._percent} %" if self._percent else ""
            return f"  {self._step}{percent} ({format_seconds(time.monotonic() - self._started)})"

    def _clear(self) -> None:
        if self._terminal:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def format_seconds(seconds: float) -> str:
    """Format a duration.

    Examples
    --------
    >>> format_seconds(7), format_seconds(134)
    ('7 s', '2 min 14 s')
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
