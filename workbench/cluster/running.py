"""The processes of a cluster with the channels to its ranks: brought up, met again, left, ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cluster import keeping
from workbench.cluster.background import uninterrupted
from workbench.cluster.engines import Engines
from workbench.cluster.guard import Guard
from workbench.cluster.options import Options
from workbench.rank.control import ANY_CELL

if TYPE_CHECKING:
    from workbench.timings import Timings
    from workbench.wire import Inbox, Message

_FREE_S = 1.0


class Running:
    """What runs between a cluster's start and its end.

    Parameters
    ----------
    options
        What was asked for.
    timings
        Gives where the ranks' records go; called once processes load, for what
        it imports takes a while as well.
    receive
        Called, in a thread, with each message of a rank.
    folder
        Of a cluster that runs already, to be met again by `find`.
    progress
        Called, in threads, with how far each VM is on its way up.

    Attributes
    ----------
    engines
        The ranks.
    """

    def __init__(
        self,
        options: Options,
        timings: Callable[[], Timings],
        receive: Callable[[int, Message], None],
        folder: Path | None = None,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._options = options
        self._timings = timings
        self._receive = receive
        self._inbox: Inbox | None = None
        self.engines = Engines(options, folder, progress)

    def start(self) -> None:
        """Bring the ranks up; `stop` takes down what a failure has left."""
        self.engines.spawn()
        # loaded only now, while the processes load what takes them longer
        from workbench.wire import Inbox

        address = self.engines.greet()
        self._timings().listen(address)
        self._inbox = Inbox(self._receive, interface=address, name="control")
        self.engines.start(self._inbox, self._timings())

    def find(self, state: dict[str, Any]) -> None:
        """Meet the ranks that an earlier kernel has left."""
        from workbench.wire import Inbox

        self._timings().restore(self.engines.folder)
        self._timings().listen(state["address"], state["timings"])
        self._inbox = Inbox(
            self._receive, interface=state["address"], name="control", state=state["control"]
        )
        self.engines.find(state["engines"], self._inbox, self._timings())

    def write_down(self, name: str) -> bool:
        """Let the next kernel find this cluster, where it is kept; return whether it is."""
        if self._options.keep_s is None or self._inbox is None:
            return False
        state = {
            "name": name,
            "address": self.engines.address,
            "options": self._options.to_plain(),
            "engines": self.engines.to_state(),
            "control": self._inbox.to_state(),
            "timings": self._timings().to_state(),
        }
        keeping.save(self.engines.folder, state)
        return True

    def send(self, rank: int, message: Message) -> None:
        """Send a message to a rank."""
        assert self._inbox is not None
        self._inbox.send(rank, message)

    def wait_until_idle(self) -> None:
        """Wait for a cell that still runs; an interrupt meanwhile ends it."""
        ranks = range(len(self.engines.ranks))
        guard = Guard(ANY_CELL, self.send)
        try:
            self.engines.wait_until_idle()
            return
        except KeyboardInterrupt:
            guard.interrupt(ranks)
        time.sleep(_FREE_S)
        guard.release(ranks)
        uninterrupted(self.engines.wait_until_idle)
        uninterrupted(self.engines.reform)

    def leave(self) -> None:
        """Let everything run where it is kept, for the next kernel."""
        self.engines.leave()
        self._close()

    def stop(self) -> None:
        """End every process; timings stand."""
        try:
            self.engines.stop()
        finally:
            self._close()

    def _close(self) -> None:
        if self._inbox is not None:
            self._inbox.close()
        self._timings().close()
