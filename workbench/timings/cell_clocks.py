"""The clocks of the ranks in all rings of a cluster, by cell."""

from __future__ import annotations

import threading
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.timings.clocks import Floats, RingClocks, Times, on_lines
from workbench.timings.store import Rows
from workbench.wire.rank_messages import ClockPing, ClockPong


class CellClocks:
    """Converts the times of any cell and rank to the kernel's clock.

    After a restart a rank may be another process on another VM. So each ring has its own clocks.

    Attributes
    ----------
    current
        The clocks of the current ring.
    changed
        Set when a new ring begins.
    """

    def __init__(self) -> None:
        self.current = RingClocks()
        self.changed = threading.Event()
        self._ring = 0
        self._of_cell: dict[int, RingClocks] = {}

    def joined(self) -> None:
        """Begin a new ring."""
        self._ring += 1
        self.current = RingClocks()
        self.changed.set()

    def begin_cell(self, cell: int) -> None:
        """Assign a cell to the current ring."""
        self._of_cell[cell] = self.current

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
