"""What one rank said in a cell, as a list of lines that is taken from its beginning."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from workbench.cluster.fold import Item, Lines


class RankLog:
    """What one rank said in a cell and is not merged yet, in its order.

    Attributes
    ----------
    taken
        How many items were merged.
    alone
        How many of the latest were its own only, in one iteration.
    """

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._iterations: list[int] = []
        self._start = 0
        self._lines = Lines()
        self._iteration = 0
        self._returns = False
        """Whether the rank has ever written a carriage return."""
        self._overwritable: Item | None = None
        """A line that ended with one: what is written over it replaces it."""
        self.taken = 0
        self.alone = 0

    def __len__(self) -> int:
        """Return how many items are not merged yet."""
        return len(self._items) - self._start

    def copy(self) -> RankLog:
        """Return another one, from which the same can be taken."""
        other = RankLog()
        other._items, other._iterations = list(self._items), list(self._iterations)
        other._start, other.taken, other.alone = self._start, self.taken, self.alone
        return other

    def text(self, stream: str, text: str, iteration: int) -> None:
        """Add what the rank wrote."""
        self._iteration = iteration
        self._returns |= "\r" in text
        self._add(self._lines.feed(stream, text))

    def display(self, bundle: str, iteration: int) -> None:
        """Add what the rank showed, as JSON text."""
        self.end()
        self._iteration = iteration
        self._add([Item("display", "", bundle)])

    def end(self) -> None:
        """End a line that has no end."""
        self._add(self._lines.flush())
        if self._overwritable is not None:
            self._append([self._overwritable])
            self._overwritable = None

    def next(self, most: int) -> list[Item]:
        """Return the next items."""
        return self._items[self._start : self._start + most]

    def head(self) -> Item:
        """Return the next item."""
        return self._items[self._start]

    def iteration(self) -> int:
        """Return the rank's iteration at its next item."""
        return self._iterations[self._start]

    def take(self, count: int, *, alone: bool) -> None:
        """Count the next items as merged, with those of other ranks or not."""
        begin, end = self._start, min(self._start + count, len(self._items) - 1)
        # iterations only grow: where that of the next item began
        began = bisect_left(self._iterations, self._iterations[end], begin, end)
        before = self.alone if began == begin else 0
        self.alone = before + self._start + count - began if alone else 0
        self._start += count
        self.taken += count
        if self._start > 10_000 and 2 * self._start > len(self._items):
            del self._items[: self._start], self._iterations[: self._start]
            self._start = 0

    def _add(self, items: Sequence[Item]) -> None:
        if self._returns:
            items = list(self._shown(items))
        self._append(items)

    def _append(self, items: Sequence[Item]) -> None:
        self._items += items
        self._iterations += [self._iteration] * len(items)

    def _shown(self, items: Iterable[Item]) -> Iterator[Item]:
        """Leave out what is written over, as a progress bar does; keep back what may be."""
        for item in items:
            before, self._overwritable = self._overwritable, None
            shown = item
            if before is not None and before.stream != item.stream:
                yield before
            elif before is not None and not item.text.strip("\r\n"):
                shown = item._replace(text=before.text[:-1] + item.text)
            if shown.text.endswith("\r"):
                self._overwritable = shown
            else:
                yield shown
