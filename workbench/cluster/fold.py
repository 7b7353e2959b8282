"""Folding what the ranks say into one text: equal lines once, none lost.

Each rank has a queue of lines. A line at the head of one queue is written
together with the equal heads of the others. It waits a moment for ranks that
have not spoken yet, and lets lines pass that another rank says before the same
line. The work is linear in the output: a line is queued once, counted once,
and written once.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

HOLD_S = 0.15
"""How long a line waits for the other ranks to say the same."""


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


class _Queue:
    """One rank's lines that are not written yet."""

    def __init__(self) -> None:
        self.items: deque[tuple[Item, float]] = deque()
        self.counts: Counter[Item] = Counter()
        self.partial: dict[str, str] = {}
        self.partial_since = 0.0
        self.ended = False

    def put(self, item: Item, now: float) -> None:
        self.items.append((item, now))
        self.counts[item] += 1

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

    def text(self, rank: int, stream: str, text: str, now: float) -> None:
        """Add what a rank wrote; lines end with a newline or a carriage return."""
        queue = self._queues[rank]
        if queue.partial and stream not in queue.partial:
            self._flush_partial(queue, now)  # keeps the order between the streams
        lines = (queue.partial.pop(stream, "") + text).replace("\r\n", "\n")
        pieces = _split(lines)
        for piece in pieces[:-1]:
            queue.put(Item(stream, piece), now)
        if pieces[-1]:
            if not queue.partial:
                queue.partial_since = now
            queue.partial[stream] = pieces[-1]

    def display(self, rank: int, bundle: str, now: float) -> None:
        """Add what a rank showed, as JSON text."""
        queue = self._queues[rank]
        self._flush_partial(queue, now)
        queue.put(Item("display", "", bundle), now)

    def end(self, rank: int, now: float) -> None:
        """A rank has nothing more to say."""
        queue = self._queues[rank]
        self._flush_partial(queue, now)
        queue.ended = True

    def ready(self, now: float) -> Iterator[Folded]:
        """Yield what can be written now."""
        for queue in self._queues.values():
            # a prompt or a progress bar without a line's end shows up too
            if queue.partial and now - queue.partial_since >= self._hold_s:
                self._flush_partial(queue, now)
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
        return Folded(tuple(ranks), item)

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

    def _flush_partial(self, queue: _Queue, now: float) -> None:
        for stream, text in queue.partial.items():
            queue.put(Item(stream, text), now)
        queue.partial.clear()


def _split(text: str) -> list[str]:
    """Split after each newline and carriage return; the last piece is unfinished or empty."""
    if "\r" not in text:
        pieces = text.split("\n")
        return [piece + "\n" for piece in pieces[:-1]] + [pieces[-1]]
    pieces = []
    start = 0
    for place, character in enumerate(text):
        if character in "\n\r":
            pieces.append(text[start : place + 1])
            start = place + 1
    return [*pieces, text[start:]]


class Writer:
    """Puts marks before folded lines, and knows whether a line stands unfinished."""

    def __init__(self) -> None:
        self._open: tuple[tuple[int, ...], str] | None = None
        self._cut: set[tuple[int, str]] = set()
        """Ranks and streams whose unfinished line was ended for them."""

    def render(self, folded: Folded, mark: str) -> str:
        """Return the text to write for a folded line, its mark included.

        Empty where a rank ends a line that was ended already.
        """
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
