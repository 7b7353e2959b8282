"""Merge the output of ranks while a cell runs: equal lines appear once, and no line is lost.

Each rank has a queue of lines. The line at the head of a queue is written together with
equal heads of other queues. It waits briefly for ranks without output. If another rank prints
other lines before the same line, these other lines are written first. The cost is linear in the
output: each line is queued, counted and written once.

This order depends on arrival times; `final_order` computes the order at the end of the cell.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

from workbench.output.differing_parts import MessageLines, RankIdentity

HOLD_S = 0.15
"""Seconds for which a line waits for the other ranks to print the same line."""
_MAX_HOLD_S = 1.0
"""Maximum seconds of this wait: for warnings and errors, and after ranks printed a line late."""
_MAX_WRITTEN = 1000
"""Number of written lines that are remembered, to notice that a rank prints one of them later."""
_PIECE = re.compile(r"[^\r\n]*[\r\n]|[^\r\n]+")
"""Matches a line with its end, or text without a line end."""


class Item(NamedTuple):
    """A line, a piece of a line, or a display; equal items of several ranks are merged."""

    stream: str
    text: str
    bundle: str = ""


class MessageLine(Item):
    """A line of a warning or an error; some parts of it may differ between ranks.

    Its text is a template, so that lines which differ only in these parts are equal.

    Attributes
    ----------
    values
        The differing parts on this rank.
    """

    values: tuple[str, ...] = ()


class MergedItem(NamedTuple):
    """An item and the ranks that printed it.

    Attributes
    ----------
    ranks
        The ranks; empty for a note of the kernel.
    item
        The item; in the final order it may contain several complete lines.
    values
        For a `MessageLine`, the parts that may differ, for each rank.
    """

    ranks: tuple[int, ...]
    item: Item
    values: tuple[tuple[str, ...], ...] = ()


def merged_item(ranks: tuple[int, ...], items: Sequence[Item]) -> MergedItem:
    """Return equal items of some ranks as one item."""
    values = tuple(item.values for item in items if isinstance(item, MessageLine))
    return MergedItem(ranks, items[0], values)


class LineSplitter:
    r"""Splitter of the writes of one rank into lines, independently of chunk boundaries.

    A line ends at a newline or a carriage return, when the rank writes to the other
    stream, and before a display.

    Parameters
    ----------
    identity
        The identity of the rank, to merge its warnings and errors with those of other ranks.
        With None, only equal lines are merged.

    Examples
    --------
    >>> splitter = LineSplitter()
    >>> splitter.feed("stdout", "epoch 1\nepo")
    [Item(stream='stdout', text='epoch 1\n', bundle='')]
    >>> splitter.feed("stdout", "ch 2\n")
    [Item(stream='stdout', text='epoch 2\n', bundle='')]
    """

    def __init__(self, identity: RankIdentity | None = None) -> None:
        self._messages = None if identity is None else MessageLines(identity)
        self._stream = ""
        self._parts: list[str] = []

    @property
    def unfinished(self) -> bool:
        """Whether a line has begun but not ended."""
        return bool(self._parts)

    def feed(self, stream: str, text: str) -> list[Item]:
        """Return the lines completed by `text`."""
        before = []
        if stream != self._stream:
            before = self.flush()
            self._stream = stream
        pending_return = bool(self._parts) and self._parts[-1].endswith("\r")
        if not (pending_return or "\n" in text or "\r" in text):
            if text:
                self._parts.append(text)
            return before
        text = "".join([*self._parts, text])
        self._parts.clear()
        if "\r" in text:
            pieces = _PIECE.findall(text.replace("\r\n", "\n"))
            # The last piece is held back: after its carriage return, a newline may still follow.
            rest = "" if pieces[-1].endswith("\n") else pieces.pop()
        else:
            *lines, rest = text.split("\n")
            pieces = [line + "\n" for line in lines]
        if rest:
            self._parts.append(rest)
        if stream == "stderr" and self._messages is not None:
            return before + [self._message_line(self._messages, piece) for piece in pieces]
        return before + [Item(stream, piece) for piece in pieces]

    def flush(self) -> list[Item]:
        """Return the unfinished line, if any."""
        text = "".join(self._parts)
        self._parts.clear()
        return [Item(self._stream, text)] if text else []

    @staticmethod
    def _message_line(messages: MessageLines, piece: str) -> Item:
        template = messages.template(piece)
        if template is None:
            return Item("stderr", piece)
        line = MessageLine("stderr", template.text)
        line.values = template.values
        return line


class _RankQueue:
    """The lines of one rank that are not written yet."""

    def __init__(self, identity: RankIdentity | None) -> None:
        self.items: deque[tuple[Item, float]] = deque()
        """The items with the times of their arrival."""
        self.counts: Counter[Item] = Counter()
        """How often each item is queued."""
        self.lines = LineSplitter(identity)
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


class OutputMerger:
    """Merger of the output of ranks. Times are in seconds of a monotonic clock.

    Parameters
    ----------
    ranks
        The ranks of the cell.
    hold_s
        Seconds for which a line waits for other ranks.
    identities
        The identities of the ranks. They are needed to merge warnings and errors.
    """

    def __init__(
        self,
        ranks: Iterable[int],
        hold_s: float = HOLD_S,
        identities: Mapping[int, RankIdentity] | None = None,
    ) -> None:
        self._queues = {rank: _RankQueue((identities or {}).get(rank)) for rank in ranks}
        self._hold_s = hold_s
        self._written: dict[Item, tuple[float, tuple[int, ...]]] = {}
        """Lines written without some ranks: the time, and the ranks that had printed the line."""

    def text(self, rank: int, stream: str, text: str, now: float) -> None:
        """Add text that a rank wrote."""
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
        """Add a display of a rank, as JSON text."""
        queue = self._queues[rank]
        queue.flush(now)
        queue.put([Item("display", "", bundle)], now)

    def end(self, rank: int, now: float) -> None:
        """Mark the end of a rank's output."""
        queue = self._queues[rank]
        queue.flush(now)
        queue.ended = True

    def ready(self, now: float) -> Iterator[MergedItem]:
        """Yield the items that can be written now."""
        for queue in self._queues.values():
            # Also show a prompt or a progress bar without a line end.
            if queue.lines.unfinished and now - queue.unfinished_since >= HOLD_S:
                queue.flush(now)
        while (item := self._next_item(now)) is not None:
            ranks = tuple(
                rank
                for rank, queue in self._queues.items()
                if queue.items and queue.items[0][0] == item
            )
            since = self._queues[ranks[0]].items[0][1]
            yield self._take(item, ranks, now)
            if len(ranks) == 1:
                yield from self._items_of_rank(ranks[0], since, now)

    def _next_item(self, now: float) -> Item | None:
        """Return the item that can be written now, or None."""
        heads: dict[Item, list[int]] = {}
        is_some_queue_empty = False
        for rank, queue in self._queues.items():
            if queue.items:
                heads.setdefault(queue.items[0][0], []).append(rank)
            elif not queue.ended:
                is_some_queue_empty = True
        if not heads:
            return None
        item = self._choose(heads)
        if is_some_queue_empty:  # A rank with nothing queued may still print the same line.
            waited = now - min(self._queues[rank].items[0][1] for rank in heads[item])
            hold_s = _MAX_HOLD_S if isinstance(item, MessageLine) else self._hold_s
            if waited < hold_s:
                return None
        return item

    def _take(self, item: Item, ranks: tuple[int, ...], now: float) -> MergedItem:
        merged = merged_item(ranks, [self._queues[rank].items[0][0] for rank in ranks])
        for rank in ranks:
            self._queues[rank].take()
        if len(ranks) < len(self._queues):
            if len(self._written) >= _MAX_WRITTEN:
                self._written.clear()
            self._written[item] = now, ranks
        return merged

    def _items_of_rank(self, rank: int, since: float, now: float) -> Iterator[MergedItem]:
        """Yield a rank's next items that arrived at the time `since`.

        Stop before the first item that another rank has queued too.
        """
        items = self._queues[rank].items
        while items and items[0][1] == since:
            item = items[0][0]
            if self._is_queued_elsewhere(item, (rank,)):
                return
            yield self._take(item, (rank,), now)

    def _wait_longer(self, rank: int, item: Item, now: float) -> None:
        """Increase the waiting time if an item of this rank was just written without the rank."""
        written_at, ranks = self._written.get(item, (0.0, (rank,)))
        if rank not in ranks:
            late_s = self._hold_s + now - written_at
            if late_s < _MAX_HOLD_S:
                self._hold_s = max(self._hold_s, 1.5 * late_s)

    def _choose(self, heads: dict[Item, list[int]]) -> Item:
        """Return the oldest line that no other rank has queued, or else the oldest line."""
        if len(heads) == 1:
            return next(iter(heads))
        unshared_items = [
            item for item in heads if not self._is_queued_elsewhere(item, heads[item])
        ]
        return min(
            unshared_items or heads, key=lambda item: self._queues[heads[item][0]].items[0][1]
        )

    def _is_queued_elsewhere(self, item: Item, ranks: Sequence[int]) -> bool:
        """Return whether a rank other than these has queued an item."""
        for rank, queue in self._queues.items():  # not any(), for speed: called for each line
            if item in queue.counts and rank not in ranks:
                return True
        return False


class LabelWriter:
    r"""Writer of rank labels before merged lines, which keeps track of an unfinished line.

    Examples
    --------
    >>> writer = LabelWriter()
    >>> writer.render(MergedItem((0, 1), Item("stdout", "ready\n")), "[0-1]")
    '[0-1] ready\n'
    >>> writer.render(MergedItem((0,), Item("stdout", "step ")), "[0]")
    '[0] step '
    >>> writer.render(MergedItem((1,), Item("stdout", "done\n")), "[1]")
    '\n[1] done\n'
    """

    def __init__(self) -> None:
        self._open: tuple[tuple[int, ...], str] | None = None
        """Ranks and stream of the unfinished line; None after a line end."""
        self._cut: set[tuple[int, str]] = set()
        """Ranks and streams with an unfinished line that other output has ended."""

    def render(self, merged: MergedItem, mark: str) -> str:
        """Return the text to write for an item, with a mark before each line.

        The text is empty if a rank ends a line that other output has already ended. An
        item without a mark is a note of the kernel.
        """
        if not mark:
            return self.close() + merged.item.text
        ranks = merged.ranks
        stream, text, _ = merged.item
        ranks_and_stream = {(rank, stream) for rank in ranks}
        ends_cut = text == "\n" and ranks_and_stream <= self._cut
        self._cut -= ranks_and_stream
        if ends_cut:
            return ""
        continues = self._open == (ranks, stream)
        before = "" if continues else self.close() + mark + " "
        ended = text.endswith(("\n", "\r"))
        if "\n" in text[:-1]:
            text = text[:-1].replace("\n", f"\n{mark} ") + text[-1]
        self._open = None if ended else (ranks, stream)
        return before + text

    def close(self) -> str:
        """Return the text that ends an unfinished line, so that another line can begin."""
        if self._open is None:
            return ""
        ranks, stream = self._open
        self._cut |= {(rank, stream) for rank in ranks}
        self._open = None
        return "\n"
