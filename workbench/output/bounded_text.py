"""A text of limited size that keeps its beginning and its end."""

from __future__ import annotations

import threading
from collections import deque

MAX_CHARACTERS = 200_000_000
"""Maximum number of characters of one cell's output that a result keeps."""
_MAX_PIECES = 4096
"""Maximum number of added texts that are kept separately until they are joined."""


class BoundedText:
    """Text that loses its middle when it exceeds a limit; threads may share it.

    Parameters
    ----------
    max_characters
        Maximum number of characters to keep: half of them from the beginning of the text, the
        other half from its end.

    Examples
    --------
    >>> text = BoundedText(max_characters=8)
    >>> text.add("first ", "middle ", "last")
    >>> print(text)
    firs
    ... 9 characters were dropped: a result keeps at most 8. ...
    last
    """

    def __init__(self, max_characters: int = MAX_CHARACTERS) -> None:
        self._half = max_characters // 2
        self._pieces: list[str] = []
        self._head: list[str] = []
        self._tail: deque[str] = deque()
        self._head_length = 0
        self._tail_length = 0
        self._dropped = 0
        self._lock = threading.Lock()

    def __str__(self) -> str:
        """Return the text, with a note in place of the dropped characters."""
        with self._lock:
            self._join()
            parts = [*self._head, *self._tail]
            dropped = self._dropped
            head_length = len(self._head)
        if dropped:
            note = (
                f"\n... {dropped:,} characters were dropped: a result keeps at most "
                f"{2 * self._half:,}. Write long logs to a file on the ranks. ...\n"
            )
            parts.insert(head_length, note)
        return "".join(parts)

    def add(self, *texts: str) -> None:
        """Add text at the end."""
        with self._lock:
            self._pieces += texts
            if len(self._pieces) >= _MAX_PIECES:
                self._join()

    def _join(self) -> None:
        """Move the added texts to the beginning and the end, and drop the excess in between."""
        text = "".join(self._pieces)
        self._pieces.clear()
        free_characters = self._half - self._head_length
        if free_characters > 0:
            self._head.append(text[:free_characters])
            self._head_length += min(free_characters, len(text))
            text = text[free_characters:]
        if not text:
            return
        self._tail.append(text)
        self._tail_length += len(text)
        while (excess := self._tail_length - self._half) > 0:
            removed = self._tail[0][:excess]
            self._dropped += len(removed)
            self._tail_length -= len(removed)
            rest = self._tail.popleft()[excess:]
            if rest:
                self._tail.appendleft(rest)
