"""The final order of a cell's output, which does not depend on arrival times.

The order depends only on the lines of each rank and their order. A line that several ranks
print appears once. Between two such lines, the ranks alternate, and lines of an earlier
training iteration come first. The cost is O(n log r) for n lines and r ranks.

Most of the order is determined while the cell runs. The position of a line that all ranks print
next is determined immediately. Whether another rank will print a line is known at the end of the
cell, or when every rank has printed many more lines: only a limited number of lines ahead is
compared.
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
"""Number of lines compared in total over all ranks; at least `_MIN_LINES` per rank."""
_MIN_LINES = 1000
_CHUNK_LINES = 1000
"""Maximum number of lines that are returned at a time."""


class OutputLog:
    """The output of all ranks of a cell, and the kernel's notes.

    Parameters
    ----------
    ranks
        The ranks of the cell.
    look_ahead
        Number of lines per rank that are compared; by default `LOOK_AHEAD_LINES`
        divided among the ranks.
    identities
        The identities of the ranks. They are needed to merge warnings and errors.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        look_ahead: int | None = None,
        identities: Mapping[int, RankIdentity] | None = None,
    ) -> None:
        self.ranks = {rank: RankLog((identities or {}).get(rank)) for rank in ranks}
        self._notes: list[tuple[dict[int, int], str]] = []
        """For each note, the number of items before it by rank, and its text."""
        default_look_ahead = max(LOOK_AHEAD_LINES // max(len(ranks), 1), _MIN_LINES)
        self._look_ahead = default_look_ahead if look_ahead is None else look_ahead
        self._merger: _Merger | None = None

    def note(self, text: str) -> None:
        """Add a note of the kernel after everything received so far."""
        counts = {rank: log.taken + len(log) for rank, log in self.ranks.items()}
        self._notes.append((counts, text))

    def advance(self) -> list[MergedItem]:
        """Return the next chunk of the final order; empty if it is not determined yet.

        Each chunk is returned once.
        """
        if self._merger is None:
            if output := self._take_common_items():
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

    def _take_common_items(self) -> list[MergedItem]:
        """Take the items that all ranks print next."""
        logs = list(self.ranks.values())
        ranks = tuple(self.ranks)
        output = self._due_notes()
        if not logs or not all(logs) or any(log.head() != logs[0].head() for log in logs[1:]):
            return output
        max_items = 1 if self._notes else _CHUNK_LINES
        first, *others = (log.next(min(max_items, *map(len, logs))) for log in logs)
        equal_count = min((_equal_count(first, other) for other in others), default=len(first))
        for log in logs:
            log.take(equal_count, alone=len(logs) == 1)
        return output + _joined(ranks, equal_count, first, *others)

    def _merged_chunk(self, merger: _Merger, max_items: int | None) -> list[MergedItem]:
        """Take the next chunk from a merger; stop using the merger after `max_items` items."""
        output = self._due_notes()
        remaining_lines = _CHUNK_LINES if max_items is None else min(_CHUNK_LINES, max_items)
        while remaining_lines > 0:
            next_items = merger.next(1 if self._notes else remaining_lines)
            if not next_items:
                self._merger = None
                break
            output += next_items
            remaining_lines -= sum(max(1, merged.item.text.count("\n")) for merged in next_items)
            if self._notes:
                output += self._due_notes()
        if max_items is not None and merger.taken >= max_items:
            self._merger = None
        return output

    def _due_notes(self) -> list[MergedItem]:
        """Take the notes that are due, because all output before them has been merged."""
        due: list[MergedItem] = []
        while self._notes:
            counts_before, text = self._notes[0]
            if any(self.ranks[rank].taken < count for rank, count in counts_before.items()):
                break
            del self._notes[0]
            due.append(MergedItem((), Item("stderr", text)))
        return due


def _joined(ranks: tuple[int, ...], count: int, *items: Sequence[Item]) -> list[MergedItem]:
    """Return consecutive items, with complete lines of one stream joined to one text.

    Parameters
    ----------
    count
        Number of items to return.
    items
        The items of each rank. They are equal on all ranks.
    """
    output: list[MergedItem] = []
    kind = attrgetter("stream", "__class__")
    end = 0
    for (stream, type_of_items), run in groupby(items[0][:count], key=kind):
        run_items = list(run)
        begin = end
        end += len(run_items)
        if type_of_items is MessageLine:
            rows = zip(*(rank_items[begin:end] for rank_items in items), strict=True)
            output += [merged_item(ranks, row) for row in rows]
            continue
        text = "".join(item.text for item in run_items)
        if text.count("\n") == len(run_items) and "\r" not in text:
            output.append(MergedItem(ranks, Item(stream, text)))
        else:
            output += [MergedItem(ranks, item) for item in run_items]
    return output


def _equal_count(first_items: list[Item], other_items: list[Item]) -> int:
    """Return the number of equal items at the beginning of two lists of equal length."""
    if first_items == other_items:
        return len(first_items)
    return next(
        position
        for position, (first_item, other_item) in enumerate(
            zip(first_items, other_items, strict=True)
        )
        if first_item != other_item
    )


def _shared_items(items_by_rank: Mapping[int, Sequence[Item]]) -> set[Item]:
    """Return the items that more than one rank printed."""
    seen_items: set[Item] = set()
    shared_items: set[Item] = set()
    *others, longest = sorted(items_by_rank.values(), key=len)
    for items in others:
        distinct_items = set(items)
        shared_items |= distinct_items & seen_items
        seen_items |= distinct_items
    shared_items.update(filter(seen_items.__contains__, longest))
    return shared_items


class _Merger:
    """Merger of the next items of ranks. A shared item waits until every rank has reached it.

    If all ranks wait for each other, the rank with the least progress continues.

    Parameters
    ----------
    logs
        The logs of the ranks, from which items are taken.
    max_items
        Maximum number of items per rank that are compared; None for all.

    Attributes
    ----------
    taken
        Number of items taken from the rank with the most progress.
    """

    def __init__(self, logs: Mapping[int, RankLog], max_items: int | None) -> None:
        self._logs = logs
        self._items = {
            rank: log.next(len(log) if max_items is None else max_items)
            for rank, log in logs.items()
        }
        self._positions = dict.fromkeys(logs, 0)
        self.taken = 0
        self._shared = _shared_items(self._items)
        """Items that more than one rank prints. Other items do not wait."""
        self._counts = {
            rank: Counter(filter(self._shared.__contains__, items))
            for rank, items in self._items.items()
        }
        """How often each rank will still print each shared item."""
        self._expected: Counter[Item] = Counter()
        """Number of ranks that will still print each shared item."""
        for counts in self._counts.values():
            self._expected.update(counts.keys())
        self._heads: dict[Item, list[int]] = {}
        """The ranks whose next item is a shared item, by this item."""
        self._waiting: list[tuple[int, int, int, int]] = []
        """Heap of the keys of ranks at a shared item. Keys of earlier positions are ignored."""
        self._free: list[tuple[int, int, int, int]] = []
        """Heap of the keys of ranks that can continue. Keys of earlier positions are ignored."""
        for rank in logs:
            self._advance(rank)
        for item in list(self._heads):
            self._check(item)

    def next(self, max_items: int) -> list[MergedItem]:
        """Return the next item and its ranks, or up to `max_items` items of one rank.

        The list is empty at the end.
        """
        rank = self._first(self._free)
        if rank is None:
            rank = self._first(self._waiting)
        if rank is None:
            return []
        item = self._items[rank][self._positions[rank]]
        if item not in self._shared:
            return self._items_of(rank, max_items)
        ranks = sorted(self._heads.pop(item))
        merged = merged_item(
            tuple(ranks),
            [self._items[waiting_rank][self._positions[waiting_rank]] for waiting_rank in ranks],
        )
        changed_items = {item}
        for waiting_rank in ranks:
            self._counts[waiting_rank][item] -= 1
            self._expected[item] -= not self._counts[waiting_rank][item]
            self._take(waiting_rank, 1, alone=len(ranks) == 1)
            if (next_item := self._advance(waiting_rank)) is not None:
                changed_items.add(next_item)
        for next_item in changed_items:
            self._check(next_item)
        return [merged]

    def _items_of(self, rank: int, max_items: int) -> list[MergedItem]:
        """Take items that only this rank prints: several, if no other rank can continue."""
        heapq.heappop(self._free)
        position = self._positions[rank]
        items = self._items[rank]
        count = 1
        if self._first(self._free) is None:
            ahead = items[position : position + max_items]
            count = next(
                (index for index, item in enumerate(ahead) if item in self._shared), len(ahead)
            )
        self._take(rank, count, alone=True)
        if (next_item := self._advance(rank)) is not None:
            self._check(next_item)
        return (
            [merged_item((rank,), [items[position]])]
            if count == 1
            else _joined((rank,), count, items[position : position + count])
        )

    def _take(self, rank: int, count: int, *, alone: bool) -> None:
        self._positions[rank] += count
        self.taken = max(self.taken, self._positions[rank])
        self._logs[rank].take(count, alone=alone)

    def _advance(self, rank: int) -> Item | None:
        """Queue a rank's next item; return the item if other ranks print it too, else None."""
        position = self._positions[rank]
        items = self._items[rank]
        if position == len(items):
            return None
        item = items[position]
        if item not in self._shared:
            heapq.heappush(self._free, self._key(rank))
            return None
        self._heads.setdefault(item, []).append(rank)
        heapq.heappush(self._waiting, self._key(rank))
        return item

    def _check(self, item: Item) -> None:
        """Release the ranks at a shared item once all ranks that will print it have reached it."""
        heads = self._heads.get(item)
        if heads and len(heads) == self._expected[item]:
            heapq.heappush(self._free, min(map(self._key, heads)))

    def _key(self, rank: int) -> tuple[int, int, int, int]:
        """Return the order of a rank: by progress, with the rank and its position at the end."""
        log = self._logs[rank]
        return (log.iteration(), log.alone, rank, self._positions[rank])

    def _first(self, heap: list[tuple[int, int, int, int]]) -> int | None:
        """Return the rank with the least progress in a heap, after removing outdated keys."""
        while heap:
            *_, rank, position = heap[0]
            if self._positions[rank] == position:
                return rank
            heapq.heappop(heap)
        return None
