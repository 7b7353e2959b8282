"""A long text in large pieces, of which the middle is dropped where it is too long to keep."""

from __future__ import annotations

from collections import deque

MOST_CHARACTERS = 200_000_000
"""How much text of one cell a result keeps."""
_PIECES = 4096


class BoundedText:
    """Collects pieces of text.

    Parameters
    ----------
    most
        Characters that are kept: half of them of the beginning, the rest of the end.
    """

    def __init__(self, most: int = MOST_CHARACTERS) -> None:
        self._half = most // 2
        self._pieces: list[str] = []
        self._head: list[str] = []
        self._tail: deque[str] = deque()
        self._sizes = [0, 0]
        self._dropped = 0

    def __str__(self) -> str:
        """Return the text, with a line in place of what was dropped."""
        self._join()
        parts = [*self._head, *self._tail]
        if self._dropped:
            note = (
                f"\n... {self._dropped:,} characters are not kept: a result has at most "
                f"{2 * self._half:,}. Write long logs to a file on the ranks. ...\n"
            )
            parts.insert(len(self._head), note)
        return "".join(parts)

    def add(self, *texts: str) -> None:
        """Add text at the end."""
        self._pieces += texts
        if len(self._pieces) >= _PIECES:
            self._join()

    def _join(self) -> None:
        text = "".join(self._pieces)
        self._pieces.clear()
        room = self._half - self._sizes[0]
        if room > 0:
            self._head.append(text[:room])
            self._sizes[0] += min(room, len(text))
            text = text[room:]
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
