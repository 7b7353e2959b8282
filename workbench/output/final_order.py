"""The final order of a cell's output, which does not depend on arrival times.

The order follows only from the lines of each rank and their order. A line that several ranks
print appears once. Between two such lines, the ranks alternate, and lines of an earlier
training iteration come first. The cost is O(n log r) for n lines and r ranks.

Most of the order is determined while the cell runs. A line that all ranks print next has its
place immediately. Whether another rank will print a line is known at the end of the cell, or
once every rank has printed many more lines: only a limited number of lines ahead is compared.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter

from workbench.output.differing_parts import RankIdentity
from workbench.output.merger import Item, MergedItem, MessageLine, merged_item
from workbench.output.rank_log import RankLog

LOOK_AHEAD_LINES = 1 << 15
"""Number of lines compared in total over all ranks; at least `_LEAST_LINES` per rank."""
_LEAST_LINES = 1000
_CHUNK_LINES = 1000
"""Number of lines returned at a time."""


class OutputLog:
    """The output of all ranks of a cell, and the kernel's notes.

    Parameters
    ----------
    ranks
        The ranks of the cell.
    look_ahead
        Number of lines per rank that are compared; by default `LOOK_AHEAD_LINES`
        divided among the ranks.
    known
        The identities of the ranks, by which warnings and errors are merged.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        look_ahead: int | None = None,
        known: Mapping[int, RankIdentity] | None = None,
    ) -> None:
        self.ranks = {rank: RankLog((known or {}).get(rank)) for rank in ranks}
        self._notes: list[tuple[dict[int, int], str]] = []
        usual = max(LOOK_AHEAD_LINES // max(len(ranks), 1), _LEAST_LINES)
        self._look_ahead = usual if look_ahead is None else look_ahead
        self._merger: _Merger | None = None

    def note(self, text: str) -> None:
        """Add a note of the kernel after everything received so far."""
        counts = {rank: log.taken + len(log) for rank, log in self.ranks.items()}
        self._notes.append((counts, text))

    def advance(self) -> list[MergedItem]:
        """Return the next chunk of the final order, empty if it is not determined yet.

        Each chunk is returned once.
        """
        if self._merger is None:
            if output := self._aligned():
                return output
            if not self.ranks or any(len(log) < self._look_ahead for log in self.ranks.values()):
                return []
            self._merger = _Merger(self.ranks, self._look_ahead)
        return self._merged_chunk(self._merger, self._look_ahead // 2)

    def rest(self) -> Iterator[list[MergedItem]]:
        """Yield the remaining chunks, after the last output has been added."""
        for log in self.ranks.values():
            log.end()
        while output := self.advance():
            yield output
        merger = self._merger = _Merger(self.ranks, None)
        while output := self._merged_chunk(merger, None):
            yield output

    def _aligned(self) -> list[MergedItem]:
        """Take the items that all ranks print next."""
        logs = list(self.ranks.values())
        ranks = tuple(self.ranks)
        output = self._due_notes()
        if not logs or not all(logs) or any(log.head() != logs[0].head() for log in logs[1:]):
            return output
        most = 1 if self._notes else _CHUNK_LINES
        first, *others = (log.next(min(most, *map(len, logs))) for log in logs)
        equal = min((_equal(first, other) for other in others), default=len(first))
        for log in logs:
            log.take(equal, alone=len(logs) == 1)
        return output + _joined(ranks, equal, first, *others)

    def _merged_chunk(self, merger: _Merger, most: int | None) -> list[MergedItem]:
        output = self._due_notes()
        left = _CHUNK_LINES if most is None else min(_CHUNK_LINES, most)
        while left > 0:
            merged = merger.next(1 if self._notes else left)
            if not merged:
                self._merger = None
                break
            output += merged
            left -= sum(max(1, one.item.text.count("\n")) for one in merged)
            if self._notes:
                output += self._due_notes()
        if most is not None and merger.taken >= most:
            self._merger = None
        return output

    def _due_notes(self) -> list[MergedItem]:
        """Take the notes whose preceding output has been merged."""
        due: list[MergedItem] = []
        while self._notes and all(
            self.ranks[rank].taken >= count for rank, count in self._notes[0][0].items()
        ):
            due.append(MergedItem((), Item("stderr", self._notes.pop(0)[1])))
        return due


def _joined(ranks: tuple[int, ...], count: int, *items: Sequence[Item]) -> list[MergedItem]:
    """Return consecutive items, with complete lines of one stream as one text.

    Parameters
    ----------
    count
        How many items to return.
    items
        The items of each rank, which are equal.
    """
    output: list[MergedItem] = []
    kind = attrgetter("stream", "__class__")
    at = 0
    for (stream, type_of_items), run in groupby(items[0][:count], key=kind):
        same = list(run)
        begin, at = at, at + len(same)
        if type_of_items is MessageLine:
            rows = zip(*(of_rank[begin:at] for of_rank in items), strict=True)
            output += [merged_item(ranks, row) for row in rows]
            continue
        text = "".join(item.text for item in same)
        if text.count("\n") == len(same) and "\r" not in text:
            output.append(MergedItem(ranks, Item(stream, text)))
        else:
            output += [MergedItem(ranks, item) for item in same]
    return output


def _equal(first: list[Item], other: list[Item]) -> int:
    """Return the length of the common beginning of two lists of equal length."""
    if first == other:
        return len(first)
    return next(at for at, (one, two) in enumerate(zip(first, other, strict=True)) if one != two)


def _shared_items(items_by_rank: Mapping[int, Sequence[Item]]) -> set[Item]:
    """Return the items that more than one rank printed."""
    seen: set[Item] = set()
    shared: set[Item] = set()
    *others, longest = sorted(items_by_rank.values(), key=len)
    for items in others:
        own = set(items)
        shared |= own & seen
        seen |= own
    shared.update(filter(seen.__contains__, longest))
    return shared


class _Merger:
    """Merges the next items of ranks; a shared item waits until every rank has reached it.

    If all ranks wait for each other, the one with the least progress continues.

    Parameters
    ----------
    logs
        The logs of the ranks, from which items are taken.
    most
        Most items per rank that are compared; None for all.

    Attributes
    ----------
    taken
        Number of items taken from the rank with the most progress.
    """

    def __init__(self, logs: Mapping[int, RankLog], most: int | None) -> None:
        self._logs = logs
        self._items = {r: log.next(len(log) if most is None else most) for r, log in logs.items()}
        self._at = dict.fromkeys(logs, 0)
        self.taken = 0
        self._shared = _shared_items(self._items)
        """Items of more than one rank; other items do not wait."""
        self._counts = {
            rank: Counter(filter(self._shared.__contains__, items))
            for rank, items in self._items.items()
        }
        self._coming: Counter[Item] = Counter()
        """Number of ranks that will still print each shared item."""
        for counts in self._counts.values():
            self._coming.update(counts.keys())
        self._heads: dict[Item, list[int]] = {}
        self._waiting: list[tuple[int, int, int, int]] = []
        self._free: list[tuple[int, int, int, int]] = []
        for rank in logs:
            self._advance(rank)
        for item in list(self._heads):
            self._check(item)

    def next(self, most: int) -> list[MergedItem]:
        """Return the next item and its ranks, or at most `most` own items; empty at the end."""
        rank = self._first(self._free)
        if rank is None:
            rank = self._first(self._waiting)
        if rank is None:
            return []
        item = self._items[rank][self._at[rank]]
        if item not in self._shared:
            return self._own(rank, most)
        ranks = sorted(self._heads.pop(item))
        merged = merged_item(tuple(ranks), [self._items[one][self._at[one]] for one in ranks])
        changed = {item}
        for one in ranks:
            self._counts[one][item] -= 1
            self._coming[item] -= not self._counts[one][item]
            self._take(one, 1, alone=len(ranks) == 1)
            if (found := self._advance(one)) is not None:
                changed.add(found)
        for found in changed:
            self._check(found)
        return [merged]

    def _own(self, rank: int, most: int) -> list[MergedItem]:
        """Take items of only one rank: several, if no other rank can continue."""
        heapq.heappop(self._free)
        at, items = self._at[rank], self._items[rank]
        count = 1
        if self._first(self._free) is None:
            ahead = items[at : at + most]
            count = next((i for i, item in enumerate(ahead) if item in self._shared), len(ahead))
        self._take(rank, count, alone=True)
        if (found := self._advance(rank)) is not None:
            self._check(found)
        return (
            [merged_item((rank,), [items[at]])]
            if count == 1
            else _joined((rank,), count, items[at : at + count])
        )

    def _take(self, rank: int, count: int, *, alone: bool) -> None:
        self._at[rank] += count
        self.taken = max(self.taken, self._at[rank])
        self._logs[rank].take(count, alone=alone)

    def _advance(self, rank: int) -> Item | None:
        """Queue a rank's next item; return it if other ranks print it too, else None."""
        at, items = self._at[rank], self._items[rank]
        if at == len(items):
            return None
        item = items[at]
        if item not in self._shared:
            heapq.heappush(self._free, self._key(rank))
            return None
        self._heads.setdefault(item, []).append(rank)
        heapq.heappush(self._waiting, self._key(rank))
        return item

    def _check(self, item: Item) -> None:
        """Mark an item as free if no further rank will print it."""
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
