"""The clocks of the ranks in each ring of a cluster, by cell."""

from __future__ import annotations

import logging
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

_log = logging.getLogger(__name__)

_PINGS = 16
"""Number of pings of a burst; the ping with the shortest round trip counts."""
_BURST_S = 15.0
"""Time between bursts after the first bursts of a ring."""
_FIRST_BURSTS_S = (1.0, 2.0, 4.0, 8.0)
"""Times between the first bursts of a ring; they are short, so that the drift is soon known."""
_PING_S = 0.01
"""Time between the pings of a burst, so that some are sent while the ranks do not communicate."""
_MAX_BURST_RANKS = 8
"""Maximum number of ranks that are pinged in one burst. More pings would wait for each other in the
kernel's single thread."""


class CellClocks:
    """Converts the times of any cell and rank to the kernel's clock.

    After a restart, a rank may be another process on another VM. So each ring has its own clocks.

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

    def begin_ring(self) -> None:
        """Begin a new ring."""
        self._ring += 1
        self.current = RingClocks()
        self._changed.set()
        _log.debug("ring %d: the clocks of its ranks are measured anew", self._ring)

    def begin_cell(self, cell: int) -> None:
        """Assign a cell to the current ring."""
        self._of_cell[cell] = self.current

    def start_pings(
        self, send_later: Callable[[int, Callable[[], Message]], None], n: Callable[[], int]
    ) -> None:
        """Start a thread that pings the ranks until `stop_pings`; `pong` handles their answers.

        Parameters
        ----------
        send_later
            ``Inbox.send_later``, which creates a message at the moment when it is sent.
        n
            Returns the number of ranks.
        """
        threading.Thread(
            target=self._run_pings, args=(send_later, n), name="workbench-clock-pings", daemon=True
        ).start()

    def stop_pings(self) -> None:
        """Stop the thread that sends pings."""
        self._stopped.set()
        self._changed.set()

    def _run_pings(
        self, send_later: Callable[[int, Callable[[], Message]], None], n: Callable[[], int]
    ) -> None:
        pauses = list(_FIRST_BURSTS_S)
        while not self._stopped.is_set():
            ranks = range(n())
            for first in range(0, len(ranks), _MAX_BURST_RANKS):
                for _ in range(_PINGS):
                    for rank in ranks[first : first + _MAX_BURST_RANKS]:
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
        """Set the clock offsets of the rows that pings have measured."""
        arrived = rows["start_ns"] + rows["last_ns"]
        times, uncertainty = self.to_kernel(rows["cell"], rows["rank"], arrived)
        is_known = np.isfinite(uncertainty)
        rows["offset_ns"][is_known] = (times - arrived)[is_known]
        rows["uncertainty_ns"][is_known] = uncertainty[is_known]

    def to_kernel(
        self, cells: npt.NDArray[Any], ranks: npt.NDArray[Any], t_ns: npt.NDArray[Any]
    ) -> tuple[Times, Floats]:
        """Return times on the kernel's clock, with uncertainties; see `RingClocks.to_kernel`.

        `cells` and `ranks` have the shape of `t_ns`: the cell and the rank of each time.
        """
        times = t_ns.astype(np.int64)
        uncertainties = np.full(t_ns.shape, np.inf)
        distinct_ranks, rank_index = np.unique(ranks, return_inverse=True)
        rank_index = rank_index.ravel()
        for clocks in set(self._of_cell.values()) if len(distinct_ranks) else ():
            ring_cells = [cell for cell, ring in tuple(self._of_cell.items()) if ring is clocks]
            indices = np.flatnonzero(np.isin(cells, ring_cells))
            # Converting the ranks one by one takes long. So the newest times of all ranks are
            # converted at once, and then the older times by rank.
            origins, lines = clocks.newest_lines(distinct_ranks.tolist())
            rank_times = t_ns.flat[indices].astype(np.int64)
            kernel_times, errors = on_lines(
                rank_times, origins[rank_index[indices]], lines[rank_index[indices]]
            )
            times.flat[indices] = kernel_times
            uncertainties.flat[indices] = errors
            older = indices[np.isinf(errors)]
            older = older[np.argsort(rank_index[older], kind="stable")]
            older_ranks, first = np.unique(rank_index[older], return_index=True)
            measured_ranks = set(clocks.ranks)
            for rank, part in zip(
                distinct_ranks[older_ranks].tolist(), np.split(older, first)[1:], strict=True
            ):
                if rank in measured_ranks:
                    times.flat[part], uncertainties.flat[part] = clocks.to_kernel(
                        rank, t_ns.flat[part]
                    )
        return times, uncertainties
