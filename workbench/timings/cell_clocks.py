"""The clocks of every ring that a cluster had, by the cells that ran in it."""

from __future__ import annotations

import threading
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.timings.clocks import Clocks, Floats, Times


class CellClocks:
    """Finds the clock by which a cell's rank wrote its times.

    Ranks change between cells: another process, perhaps on another VM, may
    have the number of one that is gone. Each ring has clocks of its own.

    Attributes
    ----------
    now
        The clocks of the present ring.
    changed
        Set when the ranks have joined anew: their clocks are others.
    """

    def __init__(self) -> None:
        self.now = Clocks()
        self.changed = threading.Event()
        self._ring = 0
        self._of_cell: dict[int, Clocks] = {}

    def joined(self) -> None:
        """The ranks have joined anew."""
        self._ring += 1
        self.now = Clocks()
        self.changed.set()

    def begin_cell(self, cell: int) -> None:
        """A cell starts to run in the present ring."""
        self._of_cell[cell] = self.now

    def ping(self) -> dict[str, Any]:
        """Return the content of a ping that is sent now."""
        return {"ring": self._ring, "sent": perf_counter_ns()}

    def pong(self, rank: int, content: dict[str, Any], received_ns: int) -> None:
        """Take a ping's answer; one from an earlier ring is passed over."""
        if content["ring"] == self._ring:
            self.now.add(rank, int(content["sent"]), int(content["answered"]), received_ns)

    def to_kernel(
        self, cells: npt.NDArray[Any], ranks: npt.NDArray[Any], t_ns: npt.NDArray[Any]
    ) -> tuple[Times, Floats]:
        """Return times on the kernel's clock, and how far each may be off, as `Clocks` does.

        Parameters
        ----------
        cells, ranks
            Which cell of which rank each time is from; of the shape of `t_ns`.
        t_ns
            Nanoseconds of the rank's clock.
        """
        times, uncertain = t_ns.astype(np.int64), np.full(t_ns.shape, np.inf)
        for clocks in set(self._of_cell.values()):
            own = [cell for cell, its in tuple(self._of_cell.items()) if its is clocks]
            here = np.isin(cells, own)
            for rank in clocks.ranks:
                at = here & (ranks == rank)
                if at.any():
                    times[at], uncertain[at] = clocks.to_kernel(rank, t_ns[at])
        return times, uncertain
