"""The order that a cell's output has in the end, whenever its lines arrived.

It follows from what each rank said, in its order, and from nothing else: equal
lines of several ranks are one, and between two of those the ranks take turns.
Where training goes on, lines of an earlier iteration come first. The work is
linear in the output, but for the logarithm of the number of ranks.

Most of it is done while the cell runs. What all ranks say next is certain at
once. Whether a line is still to come from another rank is known at the end of
the cell, or once every rank has said many lines more: of a long output that
differs, only so many lines ahead are compared.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from workbench.cluster.fold import Folded, Item, Lines

LOOK_AHEAD_LINES = 1 << 16
"""How many lines of all ranks together are compared; of each at least `_LEAST_LINES`."""
_LEAST_LINES = 1000
_PART = 1000
"""How many lines are given at a time."""


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
        self._add(self._lines.feed(stream, text))

    def display(self, bundle: str, iteration: int) -> None:
        """Add what the rank showed, as JSON text."""
        self.end()
        self._iteration = iteration
        self._add([Item("display", "", bundle)])

    def end(self) -> None:
        """End a line that has no end."""
        self._add(self._lines.flush())

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
        self._items += items
        self._iterations += [self._iteration] * len(items)


class OutputLog:
    """All that the ranks said in a cell, and what the kernel noted meanwhile."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = {rank: RankLog() for rank in ranks}
        self._notes: list[tuple[dict[int, int], str]] = []
        self._look_ahead = max(LOOK_AHEAD_LINES // max(len(ranks), 1), _LEAST_LINES)
        self._merger: _Merger | None = None

    def note(self, text: str) -> None:
        """Add what the kernel itself has to say, behind all that has come before."""
        counts = {rank: log.taken + len(log) for rank, log in self.ranks.items()}
        self._notes.append((counts, text))

    def advance(self) -> list[Folded]:
        """Return the next part of the final order, as far as it is certain; empty where it is not.

        Each part is returned once.
        """
        if self._merger is None:
            if output := self._aligned():
                return output
            if not self.ranks or any(len(log) < self._look_ahead for log in self.ranks.values()):
                return []
            self._merger = _Merger(self.ranks, self._look_ahead)
        return self._merged_part(self._merger, self._look_ahead // 2)

    def rest(self) -> Iterator[list[Folded]]:
        """Yield what `advance` has not returned, in parts; nothing more will be said."""
        for log in self.ranks.values():
            log.end()
        while output := self.advance():
            yield output
        merger = self._merger = _Merger(self.ranks, None)
        while output := self._merged_part(merger, None):
            yield output

    def merged(self) -> list[Folded]:
        """Return everything in its final order, and leave it there."""
        for log in self.ranks.values():
            log.end()
        other = OutputLog(list(self.ranks))
        other.ranks = {rank: log.copy() for rank, log in self.ranks.items()}
        other._notes = list(self._notes)
        return [folded for part in other.rest() for folded in part]

    def _aligned(self) -> list[Folded]:
        """Take what all ranks say next."""
        logs = list(self.ranks.values())
        ranks = tuple(self.ranks)
        output = self._due_notes()
        if not logs or not all(logs) or any(log.head() != logs[0].head() for log in logs[1:]):
            return output
        most = 1 if self._notes else _PART
        first, *others = (log.next(min(most, *map(len, logs))) for log in logs)
        equal = min((_equal(first, other) for other in others), default=len(first))
        for log in logs:
            log.take(equal, alone=len(logs) == 1)
        return output + [Folded(ranks, item) for item in first[:equal]]

    def _merged_part(self, merger: _Merger, most: int | None) -> list[Folded]:
        output = self._due_notes()
        for _ in range(_PART if most is None else min(_PART, most)):
            folded = merger.next()
            if folded is None:
                self._merger = None
                break
            output.append(folded)
            if self._notes:
                output += self._due_notes()
        if most is not None and merger.taken >= most:
            self._merger = None
        return output

    def _due_notes(self) -> list[Folded]:
        """Take the notes behind which everything has been merged."""
        due = []
        while self._notes and self._is_past(self._notes[0][0]):
            due.append(Folded((), Item("stderr", self._notes.pop(0)[1])))
        return due

    def _is_past(self, counts: Mapping[int, int]) -> bool:
        return all(self.ranks[rank].taken >= count for rank, count in counts.items())


def _equal(first: list[Item], other: list[Item]) -> int:
    """Return how many items at the beginning are the same; the lists are equally long."""
    if first == other:
        return len(first)
    return next(at for at, (one, two) in enumerate(zip(first, other, strict=True)) if one != two)


def _said_by_several(said: Mapping[int, Sequence[Item]]) -> set[Item]:
    seen: set[Item] = set()
    several: set[Item] = set()
    *others, longest = sorted(said.values(), key=len)
    for items in others:
        own = set(items)
        several |= own & seen
        seen |= own
    several.update(filter(seen.__contains__, longest))
    return several


class _Merger:
    """Merges what ranks say next; a line waits until every rank that will say it has come to it.

    Where all ranks wait for each other, the one that is the least ahead goes on.

    Parameters
    ----------
    logs
        What they say, which is taken from there.
    most
        How many items of each are compared; None for all.

    Attributes
    ----------
    taken
        How many items were taken of the rank that is the furthest.
    """

    def __init__(self, logs: Mapping[int, RankLog], most: int | None) -> None:
        self._logs = logs
        self._said = {r: log.next(len(log) if most is None else most) for r, log in logs.items()}
        self._at = dict.fromkeys(logs, 0)
        self.taken = 0
        self._several = _said_by_several(self._said)
        """What more than one of them say; the rest waits for nobody."""
        self._counts = {
            rank: Counter(filter(self._several.__contains__, items))
            for rank, items in self._said.items()
        }
        self._coming: Counter[Item] = Counter()
        """In how many ranks such an item is still to come."""
        for counts in self._counts.values():
            self._coming.update(counts.keys())
        self._heads: dict[Item, list[int]] = {}
        self._waiting: list[tuple[int, int, int, int]] = []
        self._free: list[tuple[int, int, int, int]] = []
        for rank in logs:
            self._advance(rank)
        for item in list(self._heads):
            self._check(item)

    def next(self) -> Folded | None:
        """Take the next item, with the ranks that say it; None at the end."""
        rank = self._first(self._free)
        if rank is None:
            rank = self._first(self._waiting)
        if rank is None:
            return None
        item = self._said[rank][self._at[rank]]
        if item not in self._several:
            self._take(rank, alone=True)
            if (found := self._advance(rank)) is not None:
                self._check(found)
            return Folded((rank,), item)
        ranks = sorted(self._heads.pop(item))
        changed = {item}
        for one in ranks:
            self._counts[one][item] -= 1
            self._coming[item] -= not self._counts[one][item]
            self._take(one, alone=len(ranks) == 1)
            if (found := self._advance(one)) is not None:
                changed.add(found)
        for found in changed:
            self._check(found)
        return Folded(tuple(ranks), item)

    def _take(self, rank: int, *, alone: bool) -> None:
        self._at[rank] += 1
        self.taken = max(self.taken, self._at[rank])
        self._logs[rank].take(1, alone=alone)

    def _advance(self, rank: int) -> Item | None:
        """Have a rank's next item wait, where others say it too; return that item, or None."""
        at, said = self._at[rank], self._said[rank]
        if at == len(said):
            return None
        item = said[at]
        if item not in self._several:
            heapq.heappush(self._free, self._key(rank))
            return None
        self._heads.setdefault(item, []).append(rank)
        heapq.heappush(self._waiting, self._key(rank))
        return item

    def _check(self, item: Item) -> None:
        """Count an item as free where no further rank will say it."""
        heads = self._heads.get(item)
        if heads and len(heads) == self._coming[item]:
            heapq.heappush(self._free, min(map(self._key, heads)))

    def _key(self, rank: int) -> tuple[int, int, int, int]:
        log = self._logs[rank]
        return (log.iteration(), log.alone, rank, self._at[rank])

    def _first(self, heap: list[tuple[int, int, int, int]]) -> int | None:
        while heap:
            *_, rank, at = heap[0]
            if self._at[rank] == at:
                return rank
            heapq.heappop(heap)
        return None
