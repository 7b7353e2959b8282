"""What a person sees while a build runs."""

from __future__ import annotations

import re
import sys
import threading
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from types import TracebackType

_PERCENT = re.compile(r"^\[\s*(\d{1,3})%\]")
_STEP_PERCENT = 10
_REFRESH_S = 0.5
_REFRESH_LOG_S = 60.0


class Progress:
    """Tells of a build: one moving line on a terminal, a line each 10 % or minute elsewhere.

    Use as a context manager around the whole build; the line's clock moves
    while the compiler is silent.

    Parameters
    ----------
    stream
        Where to write; standard error by default.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._began = time.monotonic()
        self._step, self._percent, self._told = "", 0, 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._clock = threading.Thread(target=self._tick, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        self._clock.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._clock.join()
        self._clear()

    def step(self, text: str) -> None:
        """Begin a step, such as "compiling with 2 processes"."""
        with self._lock:
            self._step, self._percent, self._told = text, 0, 0
        self._show()

    def say(self, text: str) -> None:
        """Say something that stays on the screen."""
        self._clear()
        self._write(f"{text}\n")

    def log_line(self, line: str) -> None:
        """Take note of a line of the build's log: CMake's ``[ 42%]`` moves the percent."""
        found = _PERCENT.match(line)
        if found is None:
            return
        with self._lock:
            # Several targets count for themselves: never step back.
            self._percent = max(self._percent, int(found[1]))
        if self._terminal or self._percent >= self._told + _STEP_PERCENT:
            self._told = self._percent - self._percent % _STEP_PERCENT
            self._show()

    def _tick(self) -> None:
        while not self._over.wait(_REFRESH_S if self._terminal else _REFRESH_LOG_S):
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
            return f"  {self._step}{percent} ({spell_seconds(time.monotonic() - self._began)})"

    def _clear(self) -> None:
        if self._terminal:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def spell_seconds(seconds: float) -> str:
    """Spell a duration: ``"7 s"``, ``"2 min 14 s"``."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
