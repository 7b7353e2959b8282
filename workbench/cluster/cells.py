"""The life of cells: queued, followed to their end, and the cluster settled after each."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from workbench.cluster.background import in_background, uninterrupted
from workbench.cluster.condition import Condition
from workbench.cluster.durations import parse_duration
from workbench.cluster.idle import IdleWatch
from workbench.cluster.options import Options
from workbench.cluster.run import CellRun, RunResult, acknowledge
from workbench.cluster.sink import Sink
from workbench.cluster.turns import Turns
from workbench.errors import CellError, CellInterrupted, WorkbenchError, reason

if TYPE_CHECKING:
    from workbench.cluster.running import Running
    from workbench.timings import Timings
    from workbench.wire import Message


class Cells:
    """The cells of one cluster, one after the other in the order in which they were asked for.

    Parameters
    ----------
    options
        What was asked of the cluster.
    condition
        Its state, which each cell changes.
    timings
        Gives where the ranks' records are.
    idle
        To be told when the cluster is used.
    """

    def __init__(
        self,
        options: Options,
        condition: Condition,
        timings: Callable[[], Timings],
        idle: IdleWatch,
    ) -> None:
        self._options = options
        self._condition = condition
        self._timings = timings
        self._idle = idle
        self._numbers = itertools.count(1)
        self._turns = Turns()
        self._run: CellRun | None = None
        self._left: CellRun | None = None

    @property
    def busy(self) -> tuple[int, ...]:
        """The ranks of the cell that runs."""
        return self._run.ranks if self._run else ()

    def follow_earlier(self) -> None:
        """Count on from numbers above those that an earlier kernel has given."""
        self._numbers = itertools.count(int(time.time()))

    def between(self, what: str = "") -> AbstractContextManager[None]:
        """Wait until the cells that were queued before have ended; others wait meanwhile.

        Parameters
        ----------
        what
            What waits, for the user; see `Turns.held`.
        """
        return self._turns.held(what=what)

    def queue(
        self,
        source: str,
        ranks: tuple[int, ...],
        timeout: str | float | None,
        sink: Sink,
        *,
        ahead: bool = False,
    ) -> Callable[[], RunResult]:
        """Return what runs a cell when its turn has come.

        Parameters
        ----------
        ahead
            Its turn counts from now on, rather than from the call.
        """
        run = CellRun(
            next(self._numbers),
            ranks,
            sink,
            send=self._condition.whole().send,
            lost=self._condition.lost,
            timeout_s=None if timeout is None else parse_duration(timeout, "timeout"),
            hang_after_s=self._options.hang_after_s,
        )
        ticket = self._turns.ticket() if ahead else None

        def follow() -> RunResult:
            with self._turns.held(ticket, "" if ahead else "this cell"):
                return self._follow(run, source)

        return follow

    def receive(self, rank: int, message: Message) -> None:
        """Take a message of a rank, in any thread."""
        run = self._run or self._left
        # where a rank is, is told of the rank and not of a cell
        if run is not None and message.content.get("cell", run.number) in {run.number, None}:
            run.deliver(rank, message)
        elif (running := self._condition.running) is not None:
            # of a cell that an earlier kernel began: it must not wait for us
            acknowledge(running.send, rank, message)

    def _follow(self, run: CellRun, source: str) -> RunResult:
        running = self._condition.whole()
        self._run = run
        vms = {info.rank: info.vm for info in running.engines.ranks}
        self._timings().describe(running.name, vms)
        self._timings().begin_cell(run.number)
        self._condition.set("running")
        self._idle.used()

        def begin() -> None:
            for rank in run.ranks:
                run.calls[rank] = running.engines.run(rank, run.number, source)

        try:
            return run.wait(begin)
        except CellError as error:
            error.output = run.output
            if isinstance(error, CellInterrupted):  # whoever stops it again has the answer already
                with contextlib.suppress(KeyboardInterrupt):
                    uninterrupted(lambda: self._settle(run, running))
            raise
        finally:
            if self._run is run:
                uninterrupted(lambda: self._settle(run, running))

    def _settle(self, run: CellRun, running: Running) -> None:
        """Make the cluster ready again after a cell, or say why it is not."""
        condition, engines = self._condition, running.engines
        self._idle.used()
        self._timings().end_cell(run.number, run.records)
        self._left, self._run = run if run.unfinished else None, None
        torn = condition.lost() or run.unfinished
        if condition.state == "running" and run.broken and not torn:
            self._form_ring(running)
        with condition.lock:
            if condition.state != "running":
                return
            engines.give_up(run.unfinished)
            self._conclude()
        if run.unfinished:
            run.leave(lambda rank: self._recover_later(rank, run, running))

    def _recover_later(self, rank: int, run: CellRun, running: Running) -> None:
        in_background(lambda: self._recover(rank, run, running))

    def _recover(self, rank: int, run: CellRun, running: Running) -> None:
        """Use a rank again that has ended, late, a cell that was stopped."""
        condition = self._condition
        with self.between():
            if condition.running is not running or self._left is not run:
                return
            running.engines.take_back(rank)
            with condition.lock:
                if condition.state != "failed":
                    return
                if condition.lost():
                    self._conclude()
                    return
                condition.set("running")
            self._left = None
            if run.broken:
                self._form_ring(running)
            with condition.lock:
                if condition.state == "running":
                    self._conclude()

    def _form_ring(self, running: Running) -> None:
        self._condition.set("running", "rebuilding the ring")
        try:
            running.engines.reform()
        except WorkbenchError as error:
            self._condition.set("failed", f"the ring could not be rebuilt: {reason(error)}")

    def _conclude(self) -> None:
        """Be ready, or say what is in the way."""
        condition = self._condition
        if condition.lost():
            condition.set("failed", condition.trouble())
        else:
            condition.set("ready")
