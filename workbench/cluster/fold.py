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
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
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


class Folded(NamedTuple):
    """What some ranks said.

    Attributes
    ----------
    ranks
        Who said it.
    item
        What they said; in the final order also whole lines that follow each other.
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

    def feed(self, stream: str, text: str) -> list[Item]:
        """Return the lines that `text` ends."""
        before = []
        if stream != self._stream:
            before = self.flush()
            self._stream = stream
        held = bool(self._parts) and self._parts[-1].endswith("\r")
        if not (held or "\n" in text or "\r" in text):
            if text:
                self._parts.append(text)
            return before
        text = "".join([*self._parts, text])
        self._parts.clear()
        if "\r" in text:
            pieces = _PIECE.findall(text.replace("\r\n", "\n"))
            # a carriage return may be the first half of a line's end
            rest = "" if pieces[-1].endswith("\n") else pieces.pop()
        else:
            *lines, rest = text.split("\n")
            pieces = [line + "\n" for line in lines]
        if rest:
            self._parts.append(rest)
        return before + [Item(stream, piece) for piece in pieces]

    def flush(self) -> list[Item]:
        """Return the line that has not ended, if there is one."""
        text = "".join(self._parts)
        self._parts.clear()
        return [Item(self._stream, text)] if text else []


class _Queue:
    """One rank's lines that are not written yet."""

    def __init__(self) -> None:
        self.items: deque[tuple[Item, float]] = deque()
        self.counts: Counter[Item] = Counter()
        self.lines = Lines()
        self.unfinished_since = 0.0
        self.ended = False

    def put(self, items: Sequence[Item], now: float) -> None:
        self.items.extend(zip(items, repeat(now)))
        self.counts.update(items)

    def flush(self, now: float) -> None:
        self.put(self.lines.flush(), now)

    def take(self) -> None:
        item, _ = self.items.popleft()
        count = self.counts[item]
        if count == 1:
            del self.counts[item]
        else:
            self.counts[item] = count - 1


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
        items = queue.lines.feed(stream, text)
        if self._written:
            for item in items:
                self._wait_longer(rank, item, now)
        queue.put(items, now)
        if queue.lines.unfinished and (items or not unfinished):
            queue.unfinished_since = now

    def display(self, rank: int, bundle: str, now: float) -> None:
        """Add what a rank showed, as JSON text."""
        queue = self._queues[rank]
        queue.flush(now)
        queue.put([Item("display", "", bundle)], now)

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
        while (item := self._next(now)) is not None:
            ranks = tuple(
                rank
                for rank, queue in self._queues.items()
                if queue.items and queue.items[0][0] == item
            )
            since = self._queues[ranks[0]].items[0][1]
            yield self._take(item, ranks, now)
            if len(ranks) == 1:
                yield from self._go_on(ranks[0], since, now)

    def _next(self, now: float) -> Item | None:
        """Return the item that can be written now, if there is one."""
        heads: dict[Item, list[int]] = {}
        silent = False
        for rank, queue in self._queues.items():
            if queue.items:
                heads.setdefault(queue.items[0][0], []).append(rank)
            elif not queue.ended:
                silent = True
        if not heads:
            return None
        item = self._choose(heads)
        if silent:  # somebody may still say the same
            held = now - min(self._queues[rank].items[0][1] for rank in heads[item])
            if held < self._hold_s:
                return None
        return item

    def _take(self, item: Item, ranks: tuple[int, ...], now: float) -> Folded:
        for rank in ranks:
            self._queues[rank].take()
        if len(ranks) < len(self._queues):
            if len(self._written) >= _REMEMBERED:
                self._written.clear()
            self._written[item] = now, ranks
        return Folded(ranks, item)

    def _go_on(self, rank: int, since: float, now: float) -> Iterator[Folded]:
        """Yield what came together with a rank's line and no other rank will say."""
        items = self._queues[rank].items
        while items and items[0][1] == since:
            item = items[0][0]
            if self._coming(item, (rank,)):
                return
            yield self._take(item, (rank,), now)

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

    def _coming(self, item: Item, ranks: Sequence[int]) -> bool:
        for rank, queue in self._queues.items():  # no any(): it is called for each line
            if item in queue.counts and rank not in ranks:
                return True
        return False


class Writer:
    """Puts marks before folded lines, and knows whether a line stands unfinished."""

    def __init__(self) -> None:
        self._open: tuple[tuple[int, ...], str] | None = None
        self._cut: set[tuple[int, str]] = set()
        """Ranks and streams whose unfinished line was ended for them."""

    def render(self, folded: Folded, mark: str) -> str:
        """Return the text to write for a folded line, or several, each with its mark.

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
        if "\n" in text[:-1]:
            text = text[:-1].replace("\n", f"\n{mark} ") + text[-1]
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
