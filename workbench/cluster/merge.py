"""The order that a cell's output has in the end, whenever its lines arrived.

It follows from what each rank said, in its order, and from nothing else: equal
lines of several ranks are one, and between two of those the ranks take turns.
Where training goes on, lines of an earlier iteration come first. The work is
linear in the output, but for the logarithm of the number of ranks.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from workbench.cluster.fold import Folded, Item, Lines


class RankLog:
    """All that one rank said in a cell, in its order.

    Attributes
    ----------
    items
        Each with the rank's iteration at that time.
    """

    def __init__(self) -> None:
        self.items: list[tuple[Item, int]] = []
        self._lines = Lines()
        self._iteration = 0

    def text(self, stream: str, text: str, iteration: int) -> None:
        """Add what the rank wrote."""
        self._iteration = iteration
        self._add(self._lines.feed(stream, text))

    def display(self, bundle: str, iteration: int) -> None:
        """Add what the rank showed, as JSON text."""
        self.end()
        self._iteration = iteration
        self._add([Item("display", "", bundle)])

    def end(self) -> None:
        """End a line that has no end."""
        self._add(self._lines.flush())

    def _add(self, items: Iterable[Item]) -> None:
        for item in items:
            before = self.items[-1][0] if self.items else None
            if before is not None and before.text.endswith("\r") and before.stream == item.stream:
                self.items[-1] = (_overwritten(before, item), self._iteration)
            else:
                self.items.append((item, self._iteration))


def _overwritten(before: Item, item: Item) -> Item:
    """Return what is left of a line after another was written over it: the newest text."""
    return item if item.text.strip("\r\n") else item._replace(text=before.text[:-1] + item.text)


class OutputLog:
    """All that the ranks said in a cell, and what the kernel noted meanwhile."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = {rank: RankLog() for rank in ranks}
        self._notes: list[tuple[dict[int, int], str]] = []

    def note(self, text: str) -> None:
        """Add what the kernel itself has to say, behind all that has come before."""
        counts = {rank: len(log.items) for rank, log in self.ranks.items()}
        self._notes.append((counts, text))

    def merged(self) -> list[Folded]:
        """Return everything, in its final order."""
        for log in self.ranks.values():
            log.end()
        merger = _Merger({rank: log.items for rank, log in self.ranks.items()})
        output: list[Folded] = []
        notes = list(reversed(self._notes))
        while True:
            while notes and merger.is_past(notes[-1][0]):
                output.append(Folded((), Item("stderr", notes.pop()[1])))
            folded = merger.next()
            if folded is None:
                return output
            output.append(folded)


class _Merger:
    """Merges sequences; a line waits until every rank that will say it has come to it.

    Where all ranks wait for each other, the one that is the least ahead goes on.
    """

    def __init__(self, said: Mapping[int, Sequence[tuple[Item, int]]]) -> None:
        self._said = said
        self._taken = dict.fromkeys(said, 0)
        self._alone = dict.fromkeys(said, 0)
        """Lines of each rank since its last one in common with another, in one iteration."""
        self._counts = {rank: Counter(item for item, _ in items) for rank, items in said.items()}
        self._coming: Counter[Item] = Counter()
        """In how many ranks an item is still to come."""
        for counts in self._counts.values():
            self._coming.update(counts.keys())
        self._heads: dict[Item, list[int]] = {}
        self._waiting: list[tuple[int, int, int, int]] = []
        self._free: list[tuple[int, int, int, int]] = []
        for rank in said:
            self._advance(rank)
        for item in list(self._heads):
            self._check(item)

    def is_past(self, counts: Mapping[int, int]) -> bool:
        """Whether so many items of each rank have been taken."""
        return all(self._taken[rank] >= count for rank, count in counts.items())

    def next(self) -> Folded | None:
        """Take the next item, with the ranks that say it; None at the end."""
        rank = self._first(self._free)
        if rank is None:
            rank = self._first(self._waiting)
        if rank is None:
            return None
        item = self._said[rank][self._taken[rank]][0]
        ranks = sorted(self._heads.pop(item))
        for one in ranks:
            self._counts[one][item] -= 1
            self._coming[item] -= not self._counts[one][item]
            self._taken[one] += 1
            self._alone[one] = self._alone[one] + 1 if len(ranks) == 1 else 0
        changed = {item, *(found for one in ranks if (found := self._advance(one)) is not None)}
        for one_item in changed:
            self._check(one_item)
        return Folded(tuple(ranks), item)

    def _advance(self, rank: int) -> Item | None:
        """Have a rank's next item wait; return it, or None where there is none."""
        at = self._taken[rank]
        if at == len(self._said[rank]):
            return None
        item, iteration = self._said[rank][at]
        if at and iteration != self._said[rank][at - 1][1]:
            self._alone[rank] = 0
        self._heads.setdefault(item, []).append(rank)
        heapq.heappush(self._waiting, self._key(rank))
        return item

    def _check(self, item: Item) -> None:
        """Count an item as free where no further rank will say it."""
        heads = self._heads.get(item)
        if heads and len(heads) == self._coming[item]:
            heapq.heappush(self._free, min(map(self._key, heads)))

    def _key(self, rank: int) -> tuple[int, int, int, int]:
        at = self._taken[rank]
        return (self._said[rank][at][1], self._alone[rank], rank, at)

    def _first(self, heap: list[tuple[int, int, int, int]]) -> int | None:
        while heap:
            *_, rank, at = heap[0]
            if self._taken[rank] == at:
                return rank
            heapq.heappop(heap)
        return None
