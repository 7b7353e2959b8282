"""The lines of one rank in a cell, consumed from the beginning."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from workbench.output.differing_parts import RankIdentity
from workbench.output.merger import Item, LineSplitter


class RankLog:
    """The output of one rank in a cell, in order, as far as it is not merged yet.

    Parameters
    ----------
    identity
        The identity of the rank; see `LineSplitter`.

    Attributes
    ----------
    taken
        Number of items merged so far.
    alone
        Number of consecutive items, the latest merged ones, that only this rank printed, counted
        within one iteration.
    """

    def __init__(self, identity: RankIdentity | None = None) -> None:
        self._items: list[Item] = []
        self._iterations: list[int] = []
        """The iteration in which the rank printed each item."""
        self._start = 0
        """Index of the next item in `_items`."""
        self._lines = LineSplitter(identity)
        self._iteration = 0
        self._has_returns = False
        """Whether the rank has written a carriage return."""
        self._overwritable: Item | None = None
        """A line that ended with a carriage return, which the next line replaces."""
        self.taken = 0
        self.alone = 0

    def __len__(self) -> int:
        """Return the number of items that are not merged yet."""
        return len(self._items) - self._start

    def text(self, stream: str, text: str, iteration: int) -> None:
        """Add text that the rank wrote."""
        self._iteration = iteration
        self._has_returns |= "\r" in text
        self._add(self._lines.feed(stream, text))

    def display(self, bundle: str, iteration: int) -> None:
        """Add a display of the rank, as JSON text."""
        self.end()
        self._iteration = iteration
        self._add([Item("display", "", bundle)])

    def end(self) -> None:
        """End an unfinished line."""
        self._add(self._lines.flush())
        if self._overwritable is not None:
            self._append([self._overwritable])
            self._overwritable = None

    def next(self, max_items: int) -> list[Item]:
        """Return the next items."""
        return self._items[self._start : self._start + max_items]

    def head(self) -> Item:
        """Return the next item."""
        return self._items[self._start]

    def iteration(self) -> int:
        """Return the rank's iteration at its next item."""
        return self._iterations[self._start]

    def take(self, count: int, *, alone: bool) -> None:
        """Mark the next items as merged; `alone` means that no other rank printed them."""
        begin = self._start
        end = min(self._start + count, len(self._items) - 1)
        # Iterations never decrease, so that bisection finds the start of the next item's iteration.
        iteration_start = bisect_left(self._iterations, self._iterations[end], begin, end)
        earlier_alone = self.alone if iteration_start == begin else 0
        self.alone = earlier_alone + self._start + count - iteration_start if alone else 0
        self._start += count
        self.taken += count
        if self._start > 10_000 and 2 * self._start > len(self._items):
            del self._items[: self._start], self._iterations[: self._start]
            self._start = 0

    def _add(self, items: Sequence[Item]) -> None:
        if self._has_returns:
            items = list(self._shown(items))
        self._append(items)

    def _append(self, items: Sequence[Item]) -> None:
        self._items += items
        self._iterations += [self._iteration] * len(items)

    def _shown(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield items without overwritten lines, and hold back a line that may be overwritten."""
        for item in items:
            previous = self._overwritable
            self._overwritable = None
            shown = item
            if previous is not None and previous.stream != item.stream:
                yield previous
            elif previous is not None and not item.text.strip("\r\n"):
                shown = item._replace(text=previous.text[:-1] + item.text)
            if shown.text.endswith("\r"):
                self._overwritable = shown
            else:
                yield shown
