"""The processes of a cluster with the channels to its ranks: brought up, met again, left, ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cluster import keeping
from workbench.cluster.background import in_background, uninterrupted
from workbench.cluster.engines import Engines
from workbench.cluster.guard import DRAINED_S, Guard
from workbench.cluster.options import Options
from workbench.cluster.ranks import phrase
from workbench.rank.interrupts import ANY_CELL

if TYPE_CHECKING:
    from workbench.cluster.clock_pings import ClockPings
    from workbench.cluster.transfer import Transfer
    from workbench.timings import Timings
    from workbench.wire import Inbox, Message

_NOTICE_S = 1.0
_FREE_S = 1.0
_LAST_S = 7.0
"""How long ranks that were interrupted and freed may take before they are given up."""


class Running:
    """What runs between a cluster's start and its end.

    Parameters
    ----------
    name
        The cluster's.
    options
        What was asked for.
    timings
        Gives where the ranks' records go; called once processes load, for what
        it imports takes a while as well.
    receive
        Called, in a thread, with each message of a rank that is about a cell.
    folder
        Of a cluster that runs already, to be met again by `find`.
    progress
        Called, in threads, with how far each VM is on its way up.

    Attributes
    ----------
    name
        The cluster's.
    engines
        The ranks.
    transfer
        The push or pull that is under way, which gets its ranks' messages.
    """

    def __init__(
        self,
        name: str,
        options: Options,
        timings: Callable[[], Timings],
        receive: Callable[[int, Message], None],
        *,
        folder: Path | None = None,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.name = name
        self._options = options
        self._timings = timings
        self._receive = receive
        self._inbox: Inbox | None = None
        self._pings: ClockPings | None = None
        self._guard: Guard | None = None
        """Watches an earlier kernel's cell while this kernel attaches."""
        self.transfer: Transfer | None = None
        self.engines = Engines(options, folder, progress, name)

    def start(self) -> None:
        """Bring the ranks up; `stop` takes down what a failure has left."""
        self.engines.spawn()
        # loaded only now, while the processes load what takes them longer
        from workbench.wire import Inbox

        address = self.engines.greet()
        self._timings().listen(address)
        self._inbox = Inbox(self._take, interface=address, name="control")
        self.engines.start(self._inbox, self._timings())
        self._align_clocks(self._inbox)

    def find(self, state: dict[str, Any]) -> None:
        """Meet the ranks that an earlier kernel has left."""
        from workbench.wire import Inbox

        self._timings().listen(state["address"], state["timings"])
        self._inbox = Inbox(
            self._take, interface=state["address"], name="control", state=state["control"]
        )
        self.engines.find(state["engines"], self._inbox, self._timings())
        self._align_clocks(self._inbox)
        self._keep_timings()

    def write_down(self) -> bool:
        """Say in the run who trains, and let the next kernel find a cluster that is kept.

        Returns whether it can be found.
        """
        self._keep_timings()
        if self._options.keep_s is None or self._inbox is None:
            return False
        state = {
            "name": self.name,
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
        if message.kind == "release" and message.content["init"]:
            uninterrupted(self.engines.close_rendezvous)
        self._inbox.send(rank, message)

    def wait_until_idle(self) -> None:
        """Wait for a cell that still runs; an interrupt meanwhile ends it."""
        lost = self.engines.lost()
        ranks = [rank for rank in range(len(self.engines.ranks)) if rank not in lost]
        guard = self._guard = Guard(ANY_CELL, self.send)
        if lost:  # what waits for them would wait for ever
            guard.release(ranks, torn=True)
        interrupted = False
        try:
            self._follow_earlier_cell(guard, len(ranks))
        except KeyboardInterrupt:
            interrupted = True
            guard.interrupt(ranks)
            busy = uninterrupted(lambda: self.engines.still_busy(_FREE_S))
            if busy:
                guard.release(busy, torn=bool(lost))
                busy = uninterrupted(lambda: self.engines.still_busy(_LAST_S))
            self.engines.give_up(busy)
        finally:
            self._guard = None
        if (interrupted or guard.released) and not self.engines.lost():
            uninterrupted(self.engines.reform, self.engines.give_up_ring)

    def _follow_earlier_cell(self, guard: Guard, n: int) -> None:
        """Wait until the ranks are idle; free those that wait for one that has left the cell.

        Parameters
        ----------
        n
            How many ranks there are, without those that were lost before.
        """
        say = partial(print, f"Attaching to {self.name}:", flush=True)
        left_at, freed = None, False
        if busy := self.engines.still_busy(_NOTICE_S):
            say(
                "waiting for the cell that still runs, whose output is not shown. "
                "An interrupt ends it; variables are kept."
            )
        while busy:
            now = time.monotonic()
            if len(busy) < n:
                left_at = now if left_at is None else left_at
                if now - left_at > DRAINED_S:
                    guard.look(set(busy), now, sure=True, torn=bool(self.engines.lost()))
            if guard.released and not freed and not self.engines.lost():
                freed = True
                say(f"{phrase(busy)} waited for a rank that has ended the cell. The wait is ended.")
            busy = self.engines.still_busy(_NOTICE_S)

    def leave(self) -> None:
        """Let everything run where it is kept, for the next kernel."""
        self._stop_pings()
        self.engines.leave()
        self._close()

    def stop(self) -> None:
        """End every process; timings stand."""
        self._stop_pings()
        try:
            self.engines.stop()
        finally:
            self._close()

    def _stop_pings(self) -> None:
        if self._pings is not None:
            self._pings.stop()

    def _take(self, rank: int, message: Message) -> None:
        received_ns = time.perf_counter_ns()
        if message.kind == "pong":
            self._timings().clocks.pong(rank, message.content, received_ns)
        elif message.kind == "chunk":
            if (transfer := self.transfer) is not None:
                transfer.receive(rank, message)
        elif message.kind == "where" and self._guard is not None:
            self._guard.answer(rank, message.content)
        elif message.kind == "init":
            in_background(lambda: self._serve_init(rank))
        else:
            self._receive(rank, message)

    def _serve_init(self, rank: int) -> None:
        """Let a rank that calls hvd.init() in a cell know where it finds the others."""
        from workbench.wire import Message

        self.send(rank, Message("init", {"port": self.engines.serve_init()}))

    def _align_clocks(self, inbox: Inbox) -> None:
        from workbench.cluster.clock_pings import ClockPings

        clocks = self._timings().clocks
        self._pings = ClockPings(inbox.send_later, clocks, lambda: len(self.engines.ranks))

    def _keep_timings(self) -> None:
        ranks, options = [asdict(info) for info in self.engines.ranks], self._options
        self._timings().keep(self.name, ranks, folder=options.runs, kept_s=options.keep_s)

    def _close(self) -> None:
        if self._inbox is not None:
            self._inbox.close()
        self._timings().close()
