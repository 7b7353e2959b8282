"""A text of limited size that keeps its beginning and its end."""

from __future__ import annotations

import threading
from collections import deque

MAX_CHARACTERS = 200_000_000
"""Most characters of one cell's output that a result keeps."""
_PIECES = 4096


class BoundedText:
    """Collects text and drops the middle once it exceeds a limit; threads may share it.

    Parameters
    ----------
    most
        Most characters to keep: the first half from the beginning, the rest from the end.
    """

    def __init__(self, most: int = MAX_CHARACTERS) -> None:
        self._half = most // 2
        self._pieces: list[str] = []
        self._head: list[str] = []
        self._tail: deque[str] = deque()
        self._sizes = [0, 0]
        self._dropped = 0
        self._lock = threading.Lock()

    def __str__(self) -> str:
        """Return the text, with a note in place of the dropped characters."""
        with self._lock:
            self._join()
            parts = [*self._head, *self._tail]
            dropped, size = self._dropped, len(self._head)
        if dropped:
            note = (
                f"\n... {dropped:,} characters were dropped: a result keeps at most "
                f"{2 * self._half:,}. Write long logs to a file on the ranks. ...\n"
            )
            parts.insert(size, note)
        return "".join(parts)

    def add(self, *texts: str) -> None:
        """Add text at the end."""
        with self._lock:
            self._pieces += texts
            if len(self._pieces) >= _PIECES:
                self._join()

    def _join(self) -> None:
        text = "".join(self._pieces)
        self._pieces.clear()
        free = self._half - self._sizes[0]
        if free > 0:
            self._head.append(text[:free])
            self._sizes[0] += min(free, len(text))
            text = text[free:]
        if not text:
            return
        self._tail.append(text)
        self._sizes[1] += len(text)
        while (over := self._sizes[1] - self._half) > 0:
            cut = self._tail[0][:over]
            self._dropped += len(cut)
            self._sizes[1] -= len(cut)
            rest = self._tail.popleft()[over:]
            if rest:
                self._tail.appendleft(rest)
