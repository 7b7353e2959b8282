"""What the ranks have sent so far, in numbers."""

from __future__ import annotations

import threading
from collections import Counter

import numpy as np

from workbench.timings.batch import Batch
from workbench.wire import Flag


class Counts:
    """Numbers of the records that have arrived, and of those that have not.

    A record can be lost after a rank has sent it, for example with the process that merges the
    records of a VM. Until its cell ends, the numbers of the iterations show that; then the rank
    reports how many records it has sent.

    Attributes
    ----------
    newest
        Cell, rank, and end (on the rank's clock, in ns) of the iteration that arrived last.
    """

    def __init__(self) -> None:
        self._changing = threading.Lock()
        """Records may arrive while the end of their cell is noted in another thread."""
        self._dropped: dict[int, int] = {}
        self._arrived: dict[tuple[int, int], int] = {}
        self._iterations: dict[tuple[int, int], int] = {}
        self._unheard: set[int] = set()
        self._first: dict[tuple[int, int], tuple[int, int]] = {}
        """The first iteration that arrived, and what its rank had dropped before."""
        self._dropped_until: dict[tuple[int, int], int] = {}
        """What its rank had dropped before the last iteration that arrived."""
        self._inside: Counter[tuple[int, int]] = Counter()
        self._sent: dict[tuple[int, int], int] = {}
        self._missing: dict[tuple[int, int], int] = {}
        self.newest: tuple[int, int, int] | None = None

    def add(self, batch: Batch) -> None:
        """Count the records of a batch, which is not empty."""
        with self._changing:
            self._add(batch)

    def end_cell(self, cell: int, sent: dict[int, int]) -> None:
        """Note how many records of a cell each rank has sent."""
        with self._changing:
            for rank, count in sent.items():
                self._sent[cell, rank] = count
                self._find_missing((cell, rank))

    def _add(self, batch: Batch) -> None:
        ranks, cells = batch.ranks.tolist(), batch.cells.tolist()
        keys = list(zip(cells, ranks, strict=True))
        for key, count in Counter(keys).items():
            self._arrived[key] = self._arrived.get(key, 0) + count
        dropped, inside = batch.dropped.tolist(), np.flatnonzero(batch.in_iterations)
        own = [keys[place] for place in inside]
        self._iterations.update(zip(own, (batch.index[inside] + 1).tolist(), strict=True))
        self._inside.update(own)
        for place, key in zip(inside.tolist(), own, strict=True):
            self._dropped_until[key] = dropped[place]
            if key not in self._first:
                self._first[key] = int(batch.index[place]), dropped[place]
        self._dropped.update(zip(ranks, dropped, strict=True))
        for key in set(keys):
            self._find_missing(key)
        self._unheard.update(batch.cells[(batch.flags & int(Flag.UNHEARD)) != 0].tolist())
        if len(inside):
            newest = int(inside[-1])
            self.newest = cells[newest], ranks[newest], int(batch.ends[newest])

    def _find_missing(self, key: tuple[int, int]) -> None:
        """Count the records of a cell and rank that were sent and have not arrived."""
        missing = 0
        if key in self._sent:
            missing = self._sent[key] - self._arrived.get(key, 0)
        elif key in self._first:
            first, dropped = self._first[key]
            dropped = self._dropped_until[key] - dropped
            missing = self._iterations[key] - first - self._inside[key] - dropped
        if missing > 0:
            self._missing[key] = missing
        else:
            self._missing.pop(key, None)

    def missing(self, cell: int) -> int:
        """Return how many records of a cell were sent and have not arrived."""
        return sum(count for (own, _), count in tuple(self._missing.items()) if own == cell)

    @property
    def dropped(self) -> int:
        """Records that ranks dropped instead of sending them, or that have not arrived."""
        return sum(self.dropped_by_rank.values())

    @property
    def dropped_by_rank(self) -> dict[int, int]:
        """The same, by rank."""
        found = Counter(self._dropped)
        for (_, rank), count in tuple(self._missing.items()):
            found[rank] += count
        return dict(found)

    def arrived(self, cell: int, rank: int) -> int:
        """Return how many records of a cell a rank has sent."""
        return self._arrived.get((cell, rank), 0)

    def iterations(self, cell: int, rank: int) -> int:
        """Return how many iterations of a cell a rank has reported."""
        return self._iterations.get((cell, rank), 0)

    def unheard(self, cell: int) -> bool:
        """Whether a cell communicated in its iterations in a way that cannot be timed."""
        return cell in self._unheard
