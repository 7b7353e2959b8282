"""Asks the ranks what time it is, from a thread that sleeps nearly always."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from workbench.wire import Message

if TYPE_CHECKING:
    from workbench.timings.cell_clocks import CellClocks

PINGS = 16
"""Pings of a burst; the one with the least round trip counts."""
EVERY_S = 15.0
"""Between bursts."""
EARLY_S = (1.0, 2.0, 4.0, 8.0)
"""Between the first ones: two that are near give the drift before long."""
APART_S = 0.01
"""Between the pings of a burst: some fall between two iterations' communication."""
AT_ONCE = 8
"""Ranks asked side by side: more would wait for each other in the kernel's one thread."""


class ClockPings:
    """Feeds the clocks of the ranks for as long as the cluster is up.

    Parameters
    ----------
    send_later
        Sends a rank what is made at that moment: ``Inbox.send_later``.
    clocks
        Makes the pings, and takes the answers, which come in the inbox's thread.
    n
        Tells how many ranks there are now.
    """

    def __init__(
        self,
        send_later: Callable[[int, Callable[[], Message]], None],
        clocks: CellClocks,
        n: Callable[[], int],
    ) -> None:
        self._send_later = send_later
        self._clocks = clocks
        self._n = n
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="workbench-clock-pings", daemon=True).start()

    def stop(self) -> None:
        """Ask no more."""
        self._stopped.set()
        self._clocks.changed.set()

    def _run(self) -> None:
        pauses = list(EARLY_S)
        while not self._stopped.is_set():
            self._burst()
            if self._clocks.changed.wait(pauses.pop(0) if pauses else EVERY_S):
                self._clocks.changed.clear()
                pauses = list(EARLY_S)

    def _burst(self) -> None:
        ranks = range(self._n())
        for first in range(0, len(ranks), AT_ONCE):
            for _ in range(PINGS):
                for rank in ranks[first : first + AT_ONCE]:
                    self._send_later(rank, self._ping)
                if self._stopped.wait(APART_S):
                    return

    def _ping(self) -> Message:
        return Message("ping", self._clocks.ping())
