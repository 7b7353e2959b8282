"""Merging the output of ranks while a cell runs: equal lines once, none lost.

Each rank has a queue of lines. A line at the head of one queue is written
together with the equal heads of the others. It waits a moment for ranks that
have not spoken yet, and lets lines pass that another rank says before the same
line. The work is linear in the output: a line is queued once, counted once,
and written once.

What is merged here depends on when lines arrive; `merge` gives the order that
an output has in the end.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

HOLD_S = 0.15
"""How long a line waits for the other ranks to say the same."""
_MOST_HOLD_S = 1.0
"""How long at most, where ranks were seen to say the same later than that."""
_REMEMBERED = 1000
_PIECE = re.compile(r"[^\r\n]*[\r\n]|[^\r\n]+")


class Item(NamedTuple):
    """A line, a piece of one, or a display; equal items of several ranks are one."""

    stream: str
    text: str
    bundle: str = ""


@dataclass(frozen=True)
class Folded:
    """What some ranks said.

    Attributes
    ----------
    ranks
        Who said it.
    item
        What they said.
    """

    ranks: tuple[int, ...]
    item: Item


class Lines:
    """Cuts what one rank writes into lines, however its writes were cut on their way.

    A line ends with a newline or a carriage return, where the other stream is
    written to, and before a display.
    """

    def __init__(self) -> None:
        self._stream = ""
        self._parts: list[str] = []

    @property
    def unfinished(self) -> bool:
        """Whether a line has begun and not ended."""
        return bool(self._parts)

    def feed(self, stream: str, text: str) -> Iterator[Item]:
        """Yield the lines that `text` ends."""
        if stream != self._stream:
            yield from self.flush()
            self._stream = stream
        if self._parts and self._parts[-1].endswith("\r"):
            text = self._parts.pop() + text
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        pieces = _PIECE.findall(text)
        for piece in pieces[:-1]:
            yield self._line(piece)
        if pieces and pieces[-1].endswith("\n"):
            yield self._line(pieces[-1])
        elif pieces:  # a carriage return may be the first half of a line's end
            self._parts.append(pieces[-1])

    def flush(self) -> Iterator[Item]:
        """Yield the line that has not ended, if there is one."""
        if self._parts:
            yield self._line("")

    def _line(self, end: str) -> Item:
        text = "".join([*self._parts, end])
        self._parts.clear()
        return Item(self._stream, text)


class _Queue:
    """One rank's lines that are not written yet."""

    def __init__(self) -> None:
        self.items: deque[tuple[Item, float]] = deque()
        self.counts: Counter[Item] = Counter()
        self.lines = Lines()
        self.unfinished_since = 0.0
        self.ended = False

    def put(self, item: Item, now: float) -> None:
        self.items.append((item, now))
        self.counts[item] += 1

    def flush(self, now: float) -> None:
        for item in self.lines.flush():
            self.put(item, now)

    def head(self) -> Item | None:
        return self.items[0][0] if self.items else None

    def take(self) -> None:
        item, _ = self.items.popleft()
        self.counts[item] -= 1
        if not self.counts[item]:
            del self.counts[item]


class Folder:
    """Folds the output of ranks; times are seconds of one monotonic clock.

    Parameters
    ----------
    ranks
        Whose output will come.
    hold_s
        How long a line waits for the others.
    """

    def __init__(self, ranks: Iterable[int], hold_s: float = HOLD_S) -> None:
        self._queues = {rank: _Queue() for rank in ranks}
        self._hold_s = hold_s
        self._written: dict[Item, tuple[float, tuple[int, ...]]] = {}
        """When lines were written without some rank, and for which."""

    def text(self, rank: int, stream: str, text: str, now: float) -> None:
        """Add what a rank wrote."""
        queue = self._queues[rank]
        unfinished = queue.lines.unfinished
        for item in queue.lines.feed(stream, text):
            unfinished = False
            self._wait_longer(rank, item, now)
            queue.put(item, now)
        if queue.lines.unfinished and not unfinished:
            queue.unfinished_since = now

    def display(self, rank: int, bundle: str, now: float) -> None:
        """Add what a rank showed, as JSON text."""
        queue = self._queues[rank]
        queue.flush(now)
        queue.put(Item("display", "", bundle), now)

    def end(self, rank: int, now: float) -> None:
        """A rank has nothing more to say."""
        queue = self._queues[rank]
        queue.flush(now)
        queue.ended = True

    def ready(self, now: float) -> Iterator[Folded]:
        """Yield what can be written now."""
        for queue in self._queues.values():
            # a prompt or a progress bar without a line's end shows up too
            if queue.lines.unfinished and now - queue.unfinished_since >= HOLD_S:
                queue.flush(now)
        while (folded := self._next(now)) is not None:
            yield folded

    def _next(self, now: float) -> Folded | None:
        heads: dict[Item, list[int]] = {}
        silent = False
        for rank, queue in self._queues.items():
            head = queue.head()
            if head is not None:
                heads.setdefault(head, []).append(rank)
            elif not queue.ended:
                silent = True
        if not heads:
            return None
        item = self._choose(heads)
        ranks = heads[item]
        held = now - min(self._queues[rank].items[0][1] for rank in ranks)
        if silent and len(ranks) < len(self._queues) and held < self._hold_s:
            return None
        for rank in ranks:
            self._queues[rank].take()
        if len(ranks) < len(self._queues):
            if len(self._written) >= _REMEMBERED:
                self._written.clear()
            self._written[item] = now, tuple(ranks)
        return Folded(tuple(ranks), item)

    def _wait_longer(self, rank: int, item: Item, now: float) -> None:
        """Wait longer from now on, where a rank says what was just written without it."""
        written, ranks = self._written.get(item, (0.0, (rank,)))
        if rank not in ranks:
            late_s = self._hold_s + now - written
            if late_s < _MOST_HOLD_S:
                self._hold_s = max(self._hold_s, 1.5 * late_s)

    def _choose(self, heads: dict[Item, list[int]]) -> Item:
        """Prefer a line that no other rank will still say, the oldest of them."""
        if len(heads) == 1:
            return next(iter(heads))
        free = [item for item in heads if not self._coming(item, heads[item])]
        return min(free or heads, key=lambda item: self._queues[heads[item][0]].items[0][1])

    def _coming(self, item: Item, ranks: list[int]) -> bool:
        return any(
            item in queue.counts for rank, queue in self._queues.items() if rank not in ranks
        )


class Writer:
    """Puts marks before folded lines, and knows whether a line stands unfinished."""

    def __init__(self) -> None:
        self._open: tuple[tuple[int, ...], str] | None = None
        self._cut: set[tuple[int, str]] = set()
        """Ranks and streams whose unfinished line was ended for them."""

    def render(self, folded: Folded, mark: str) -> str:
        """Return the text to write for a folded line, its mark included.

        Empty where a rank ends a line that was ended already. Without a mark,
        the text is the kernel's own.
        """
        if not mark:
            return self.close() + folded.item.text
        ranks, (stream, text, _) = folded.ranks, folded.item
        who = {(rank, stream) for rank in ranks}
        ends_cut = text == "\n" and who <= self._cut
        self._cut -= who
        if ends_cut:
            return ""
        goes_on = self._open == (ranks, stream)
        before = "" if goes_on else self.close() + mark + " "
        ended = text.endswith(("\n", "\r"))
        self._open = None if ended else (ranks, stream)
        return before + text

    def close(self) -> str:
        """Return what ends an unfinished line, so that another can begin."""
        if self._open is None:
            return ""
        ranks, stream = self._open
        self._cut |= {(rank, stream) for rank in ranks}
        self._open = None
        return "\n"
