"""The clocks of the ranks in all rings of a cluster, by cell."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.timings.clocks import Floats, RingClocks, Times, on_lines
from workbench.timings.store import Rows
from workbench.wire import Message
from workbench.wire.rank_messages import ClockPing, ClockPong

_PINGS = 16
"""Pings of a burst; the one with the shortest round trip counts."""
_BURST_S = 15.0
"""Time between bursts."""
_FIRST_BURSTS_S = (1.0, 2.0, 4.0, 8.0)
"""Time between the first bursts of a ring, which soon give the drift."""
_PING_S = 0.01
"""Time between the pings of a burst: some are sent while the ranks do not communicate."""
_AT_ONCE = 8
"""Ranks of one burst: with more, pings would wait for each other in the kernel's one thread."""


class CellClocks:
    """Converts the times of any cell and rank to the kernel's clock.

    After a restart a rank may be another process on another VM. So each ring has its own clocks.

    Attributes
    ----------
    current
        The clocks of the current ring.
    """

    def __init__(self) -> None:
        self.current = RingClocks()
        self._changed = threading.Event()
        self._stopped = threading.Event()
        self._ring = 0
        self._of_cell: dict[int, RingClocks] = {}

    def joined(self) -> None:
        """Begin a new ring."""
        self._ring += 1
        self.current = RingClocks()
        self._changed.set()

    def begin_cell(self, cell: int) -> None:
        """Assign a cell to the current ring."""
        self._of_cell[cell] = self.current

    def start_pings(
        self, send_later: Callable[[int, Callable[[], Message]], None], n: Callable[[], int]
    ) -> None:
        """Ping the ranks in a thread until `stop_pings`; their answers are given to `pong`.

        Parameters
        ----------
        send_later
            ``Inbox.send_later``, which makes a message at the moment when it is sent.
        n
            Returns the number of ranks.
        """
        threading.Thread(
            target=self._run_pings, args=(send_later, n), name="workbench-clock-pings", daemon=True
        ).start()

    def stop_pings(self) -> None:
        """Send no more pings."""
        self._stopped.set()
        self._changed.set()

    def _run_pings(
        self, send_later: Callable[[int, Callable[[], Message]], None], n: Callable[[], int]
    ) -> None:
        pauses = list(_FIRST_BURSTS_S)
        while not self._stopped.is_set():
            ranks = range(n())
            for first in range(0, len(ranks), _AT_ONCE):
                for _ in range(_PINGS):
                    for rank in ranks[first : first + _AT_ONCE]:
                        send_later(rank, self.ping)
                    if self._stopped.wait(_PING_S):
                        return
            if self._changed.wait(pauses.pop(0) if pauses else _BURST_S):
                self._changed.clear()
                pauses = list(_FIRST_BURSTS_S)

    def ping(self) -> ClockPing:
        """Return a ping with the current time."""
        return ClockPing(self._ring, perf_counter_ns())

    def pong(self, rank: int, pong: ClockPong, received_ns: int) -> None:
        """Add the answer to a ping; ignore answers from an earlier ring."""
        if pong.ring == self._ring:
            self.current.add(rank, pong.sent_ns, pong.answered_ns, received_ns)

    def align(self, rows: Rows) -> None:
        """Set the clock offsets of rows, where pings have measured them."""
        arrived = rows["start_ns"] + rows["last_ns"]
        times, uncertainty = self.to_kernel(rows["cell"], rows["rank"], arrived)
        known = np.isfinite(uncertainty)
        rows["offset_ns"][known] = (times - arrived)[known]
        rows["uncertainty_ns"][known] = uncertainty[known]

    def to_kernel(
        self, cells: npt.NDArray[Any], ranks: npt.NDArray[Any], t_ns: npt.NDArray[Any]
    ) -> tuple[Times, Floats]:
        """Return times on the kernel's clock, with uncertainties; see `RingClocks.to_kernel`.

        `cells` and `ranks` say where each time of `t_ns` comes from; all have the same shape.
        """
        times, uncertain = t_ns.astype(np.int64), np.full(t_ns.shape, np.inf)
        numbers, place = np.unique(ranks, return_inverse=True)
        place = place.ravel()
        for clocks in set(self._of_cell.values()) if len(numbers) else ():
            own = [cell for cell, its in tuple(self._of_cell.items()) if its is clocks]
            here = np.flatnonzero(np.isin(cells, own))
            # all ranks at once, because one after the other takes long; then the older times
            whole, lines = clocks.newest_lines(numbers.tolist())
            given = t_ns.flat[here].astype(np.int64)
            found, error = on_lines(given, whole[place[here]], lines[place[here]])
            times.flat[here], uncertain.flat[here] = found, error
            older = here[np.isinf(error)]
            older = older[np.argsort(place[older], kind="stable")]
            of_rank, first = np.unique(place[older], return_index=True)
            known = set(clocks.ranks)
            for rank, at in zip(numbers[of_rank].tolist(), np.split(older, first)[1:], strict=True):
                if rank in known:
                    times.flat[at], uncertain.flat[at] = clocks.to_kernel(rank, t_ns.flat[at])
        return times, uncertain
