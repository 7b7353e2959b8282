"""How many records and iterations the ranks have sent so far."""

from __future__ import annotations

import threading
from collections import Counter

import numpy as np

from workbench.timings.batch import Batch
from workbench.wire import Flag


class Counts:
    """Numbers of the records that have arrived, and of the records that are missing.

    A record can be lost after a rank has sent it, for example with the process that merges the
    records of a VM. Until the cell ends, gaps in the numbers of the iterations show a loss. At
    the end of the cell, the rank reports how many records it has sent.

    Attributes
    ----------
    newest
        Cell, rank, and end (on the rank's clock, in ns) of the iteration that arrived last.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Lock of the counts, because records may arrive while another thread ends their cell."""
        self._dropped: dict[int, int] = {}
        """By rank: how many iterations it has dropped."""
        self._arrived: dict[tuple[int, int], int] = {}
        """By cell and rank: how many records have arrived."""
        self._iterations: dict[tuple[int, int], int] = {}
        """By cell and rank: the index of the last iteration that arrived, plus 1."""
        self._unheard: set[int] = set()
        """The cells with communication that cannot be timed."""
        self._first: dict[tuple[int, int], tuple[int, int]] = {}
        """By cell and rank: the index of the first iteration that arrived, and how many iterations
        the rank had dropped before it."""
        self._dropped_until: dict[tuple[int, int], int] = {}
        """By cell and rank: how many iterations the rank had dropped before the last iteration that
        arrived."""
        self._inside: Counter[tuple[int, int]] = Counter()
        """By cell and rank: how many records of iterations have arrived."""
        self._sent: dict[tuple[int, int], int] = {}
        """By cell and rank: how many records the rank has sent, known when the cell has ended."""
        self._missing: dict[tuple[int, int], int] = {}
        self.newest: tuple[int, int, int] | None = None

    def add(self, batch: Batch) -> None:
        """Count the records of a batch, which must not be empty."""
        with self._lock:
            self._add(batch)

    def end_cell(self, cell: int, sent: dict[int, int]) -> None:
        """Store how many records of a cell each rank has sent."""
        with self._lock:
            for rank, count in sent.items():
                self._sent[cell, rank] = count
                self._find_missing((cell, rank))

    def _add(self, batch: Batch) -> None:
        ranks = batch.ranks.tolist()
        cells = batch.cells.tolist()
        keys = list(zip(cells, ranks, strict=True))
        for key, count in Counter(keys).items():
            self._arrived[key] = self._arrived.get(key, 0) + count
        dropped = batch.dropped.tolist()
        inside = np.flatnonzero(batch.in_iterations)
        inside_keys = [keys[index] for index in inside]
        self._iterations.update(zip(inside_keys, (batch.index[inside] + 1).tolist(), strict=True))
        self._inside.update(inside_keys)
        for index, key in zip(inside.tolist(), inside_keys, strict=True):
            self._dropped_until[key] = dropped[index]
            if key not in self._first:
                self._first[key] = int(batch.index[index]), dropped[index]
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
            first_index, dropped_before = self._first[key]
            dropped_since_first = self._dropped_until[key] - dropped_before
            missing = self._iterations[key] - first_index - self._inside[key] - dropped_since_first
        if missing > 0:
            self._missing[key] = missing
        else:
            self._missing.pop(key, None)

    def missing(self, cell: int) -> int:
        """Return how many records of a cell were sent and have not arrived."""
        return sum(count for (c, _), count in tuple(self._missing.items()) if c == cell)

    @property
    def dropped(self) -> int:
        """Number of records that ranks dropped without sending them, or that have not arrived."""
        return sum(self.dropped_by_rank.values())

    @property
    def dropped_by_rank(self) -> dict[int, int]:
        """By rank, the number of records that were dropped, or that have not arrived."""
        counts = Counter(self._dropped)
        for (_, rank), count in tuple(self._missing.items()):
            counts[rank] += count
        return dict(counts)

    def arrived(self, cell: int, rank: int) -> int:
        """Return how many records of a cell have arrived from a rank."""
        return self._arrived.get((cell, rank), 0)

    def iterations(self, cell: int, rank: int) -> int:
        """Return how many iterations of a cell a rank has reported."""
        return self._iterations.get((cell, rank), 0)

    def unheard(self, cell: int) -> bool:
        """Whether a cell has communication in its iterations that cannot be timed."""
        return cell in self._unheard
