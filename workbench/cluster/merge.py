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
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter

from workbench.cluster.fold import Folded, Item
from workbench.cluster.rank_log import RankLog

LOOK_AHEAD_LINES = 1 << 15
"""How many lines of all ranks together are compared; of each at least `_LEAST_LINES`."""
_LEAST_LINES = 1000
_PART = 1000
"""How many lines are given at a time."""


class OutputLog:
    """All that the ranks said in a cell, and what the kernel noted meanwhile.

    Parameters
    ----------
    ranks
        Whose output will come.
    look_ahead
        How many lines of each rank are compared; by default `LOOK_AHEAD_LINES`
        of all of them together.
    """

    def __init__(self, ranks: Sequence[int], look_ahead: int | None = None) -> None:
        self.ranks = {rank: RankLog() for rank in ranks}
        self._notes: list[tuple[dict[int, int], str]] = []
        usual = max(LOOK_AHEAD_LINES // max(len(ranks), 1), _LEAST_LINES)
        self._look_ahead = usual if look_ahead is None else look_ahead
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
        other = OutputLog(list(self.ranks), self._look_ahead)
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
        return output + _joined(ranks, first[:equal])

    def _merged_part(self, merger: _Merger, most: int | None) -> list[Folded]:
        output = self._due_notes()
        left = _PART if most is None else min(_PART, most)
        while left > 0:
            folded = merger.next(1 if self._notes else left)
            if not folded:
                self._merger = None
                break
            output += folded
            left -= sum(max(1, one.item.text.count("\n")) for one in folded)
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


def _joined(ranks: tuple[int, ...], items: Sequence[Item]) -> list[Folded]:
    """Return items that follow each other; whole lines of one stream as one text."""
    output: list[Folded] = []
    for stream, run in groupby(items, key=attrgetter("stream")):
        same = list(run)
        text = "".join(item.text for item in same)
        if text.count("\n") == len(same) and "\r" not in text:
            output.append(Folded(ranks, Item(stream, text)))
        else:
            output += [Folded(ranks, item) for item in same]
    return output


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

    def next(self, most: int) -> list[Folded]:
        """Take the next item, with the ranks that say it, or at most so many; empty at the end."""
        rank = self._first(self._free)
        if rank is None:
            rank = self._first(self._waiting)
        if rank is None:
            return []
        item = self._said[rank][self._at[rank]]
        if item not in self._several:
            return self._own(rank, most)
        ranks = sorted(self._heads.pop(item))
        changed = {item}
        for one in ranks:
            self._counts[one][item] -= 1
            self._coming[item] -= not self._counts[one][item]
            self._take(one, 1, alone=len(ranks) == 1)
            if (found := self._advance(one)) is not None:
                changed.add(found)
        for found in changed:
            self._check(found)
        return [Folded(tuple(ranks), item)]

    def _own(self, rank: int, most: int) -> list[Folded]:
        """Take what only one rank says: several lines, where no other can go on."""
        heapq.heappop(self._free)
        at, said = self._at[rank], self._said[rank]
        count = 1
        if self._first(self._free) is None:
            ahead = said[at : at + most]
            count = next((i for i, item in enumerate(ahead) if item in self._several), len(ahead))
        self._take(rank, count, alone=True)
        if (found := self._advance(rank)) is not None:
            self._check(found)
        return (
            [Folded((rank,), said[at])] if count == 1 else _joined((rank,), said[at : at + count])
        )

    def _take(self, rank: int, count: int, *, alone: bool) -> None:
        self._at[rank] += count
        self.taken = max(self.taken, self._at[rank])
        self._logs[rank].take(count, alone=alone)

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
