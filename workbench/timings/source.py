"""The sources that figures and exports read: the interface, and the timings in memory."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np

from workbench.errors import UsageError
from workbench.ranks import checked_int
from workbench.timings.cell_clocks import CellClocks
from workbench.timings.logged import NOTHING, LoggedTable
from workbench.timings.store import CollectiveRecord, Rows, Store

_MAX_ITERATION = 2**62
"""Maximum number of an iteration in queries; larger numbers are replaced by this one, because
Arrow's integers have at most 64 bits."""


class RankClocks(Protocol):
    """Converts the ranks' times to a common clock."""

    def to_kernel(self, rank: int, t_ns: int, /) -> tuple[Any, Any]:
        """Return a rank's time on the common clock, and its uncertainty, in nanoseconds."""


ClocksLike: TypeAlias = RankClocks | Callable[[int, int], tuple[Any, Any]]
"""Clocks, or a function with the signature of `RankClocks.to_kernel`."""


class TimingsSource(ABC):
    """The rows and records of a training: of a cluster in memory, or of a run on disk."""

    @abstractmethod
    def rows(self, start: int = 0) -> Rows:
        """Return a copy of the rows from index `start` on (see `store.ROW`)."""

    @abstractmethod
    def records(self, first: int | None = None, last: int | None = None) -> list[CollectiveRecord]:
        """Return the records of the iterations `first` to `last`; without both, the newest."""

    def logged(self) -> LoggedTable:
        """Return the values that cells have logged with their iterations (`workbench.log`)."""
        return NOTHING

    def vm_names(self) -> dict[int, str]:
        """Return the host name of each rank's VM, where known."""
        return {}

    def known_clocks(self) -> CellClocks | None:
        """Return the ranks' clocks as measured by pings; None without pings."""
        return None


def checked_span(first: object, last: object) -> tuple[int | None, int | None]:
    """Return the first and the last iteration of a query as integers, and None for a default.

    Raises
    ------
    UsageError
        `first` or `last` is not an integer.

    Examples
    --------
    >>> checked_span(10, None)
    (10, None)
    """
    arguments = (("first", first), ("last", last))
    numbers = [None if value is None else checked_int(value, name) for name, value in arguments]
    begin, end = (
        None if n is None else max(-_MAX_ITERATION, min(n, _MAX_ITERATION)) for n in numbers
    )
    return begin, end


class LiveSource(TimingsSource):
    """A `TimingsSource` in memory, which grows while ranks train.

    Parameters
    ----------
    one_clock
        Whether all ranks run on the kernel's VM. They then read the kernel's clock, and no offsets
        are needed.

    Attributes
    ----------
    vms
        Host name of each rank's VM, where known.
    errors
        Errors of records that could not be read, the newest last.
    clocks
        The ranks' clocks compared with the kernel's clock.
    lag_s
        How long after its end the newest iteration was stored; NaN if the clocks are unknown.
    logged_store
        The values that cells have logged with their iterations.
    """

    def __init__(self, *, one_clock: bool = False) -> None:
        self._one_clock = one_clock
        self.vms: dict[int, str] = {}
        self.errors: list[str] = []
        self.clocks = CellClocks()
        self.lag_s = float("nan")
        self._measured: tuple[int, int, int] | None = None
        self._store = Store()
        self.logged_store = self._store.logged
        self._running: set[int] = set()
        self._listeners: list[Callable[[], None]] = []

    def __len__(self) -> int:
        """Return the number of rows received so far, including rows no longer in memory."""
        return self._store.total

    def rows(self, start: int = 0) -> Rows:
        """Return a copy of the rows from index `start` on (see `store.ROW`)."""
        return self.read(checked_int(start, "start"))[1]

    def read(
        self, start: int, stop: int | None = None, *, aligned: bool = True
    ) -> tuple[int, Rows]:
        """Return the index of the first row, and the rows in memory from index `start` to `stop`.

        Without `aligned`, the clock offsets of the rows are not set, which takes less time.
        """
        first, rows = self._store.read(start, stop)
        return first, self._align(rows) if aligned else rows

    def between(self, first: int, last: int) -> Rows:
        """Return the rows in memory of the iterations `first` to `last`, both included."""
        return self._align(self._store.between(first, last))

    def records(self, first: int | None = None, last: int | None = None) -> list[CollectiveRecord]:
        """Return the records in memory of the iterations `first` to `last`."""
        return self._store.collectives.between(*checked_span(first, last))

    def vm_names(self) -> dict[int, str]:
        """Return the host name of each rank's VM, where known."""
        return self.vms

    def logged(self) -> LoggedTable:
        """Return the values that cells have logged with their iterations, if they are in memory."""
        return self.logged_store.read()[1]

    def known_clocks(self) -> CellClocks:
        """Return the ranks' clocks as measured by pings."""
        return self.clocks

    def first_of_cell(self, cell: int) -> int | None:
        """Return the number of a cell's first iteration; None if none has arrived."""
        return self._store.first_of_cell(cell)

    @property
    def newest_cell(self) -> int:
        """The cell of the newest iterations; 0 before the first iteration."""
        return self._store.newest_cell

    def begin_ring(self) -> None:
        """Begin a new ring, which has other ranks or new processes of the same ranks."""
        self._store.forget_layouts()
        self.clocks.begin_ring()

    @property
    def dropped(self) -> int:
        """Number of records that were lost before they arrived, or could not be read."""
        return self._store.counts.dropped + len(self.errors)

    @property
    def dropped_by_rank(self) -> dict[int, int]:
        """Number of records that each rank dropped, or that were lost after it had sent them."""
        return self._store.counts.dropped_by_rank

    @property
    def running(self) -> bool:
        """Whether a cell is running, so that more records may arrive."""
        return bool(self._running)

    @property
    def unheard(self) -> bool:
        """Whether a running cell has communication in its iterations that cannot be timed."""
        return any(map(self._store.counts.unheard, tuple(self._running)))

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener`, from any thread, when a cell begins or ends or records arrive.

        The listener must return at once. Return a function that ends the subscription.

        Raises
        ------
        UsageError
            The listener cannot be called.
        """
        if not callable(listener):
            raise UsageError(f"subscribe({listener!r}): cannot be called. Give a function.")
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def _measure_lag(self) -> None:
        """Set `lag_s`, after records have been stored."""
        newest = self._store.counts.newest
        if newest is None or newest == self._measured:
            return  # no new iteration has arrived
        self._measured = newest
        cell, rank, end_ns = newest
        now = time.perf_counter_ns()
        if not self._one_clock:
            arrays = (np.array([number]) for number in (cell, rank, end_ns))
            (end_ns,), (uncertainty_ns,) = self.clocks.to_kernel(*arrays)
            if not np.isfinite(uncertainty_ns):
                return
        self.lag_s = max(0.0, float(now - end_ns) / 1e9)

    def _notify(self) -> None:
        for listener in tuple(self._listeners):
            listener()

    def _align(self, rows: Rows) -> Rows:
        if self._one_clock:
            rows["uncertainty_ns"] = 0
        else:
            self.clocks.align(rows)
        return rows
