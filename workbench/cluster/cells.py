"""The life of cells: queued, followed to their end, and the cluster settled after each."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
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
from workbench.errors import CellError, CellInterrupted, UsageError, WorkbenchError, reason

_NOTICE_S = 1.0
"""A ring that is not formed after this time is mentioned in the output."""

if TYPE_CHECKING:
    from workbench.cluster.running import Running
    from workbench.timings import Timings
    from workbench.wire import Message


class BackgroundRun(Future[RunResult]):
    """The future result of a cell that runs in the background.

    ``cancel()`` has no effect, since the cell is queued at once; use `interrupt`.

    Parameters
    ----------
    interrupt
        Interrupts the cell, from any thread.
    """

    def __init__(self, interrupt: Callable[[], None]) -> None:
        super().__init__()
        self._interrupt = interrupt

    def interrupt(self) -> bool:
        """Stop the cell as the stop button stops one that the notebook waits for.

        Returns at once. ``result()`` then raises `CellInterrupted`; variables are
        kept, and cells that were queued later run next. A cell that has not begun
        is removed from the queue.

        Returns
        -------
        bool
            False where the cell had ended already.
        """
        if self.done():
            return False
        self._interrupt()
        return True


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
    ) -> tuple[Callable[[], RunResult], Callable[[], None]]:
        """Return what runs a cell when its turn has come, and what interrupts it until its end.

        Parameters
        ----------
        ahead
            Its turn counts from now on, rather than from the call.
        """
        running = self._condition.whole(ring=False)
        run = CellRun(
            next(self._numbers),
            ranks,
            sink,
            send=running.send,
            ring=tuple(range(len(running.engines.ranks))),
            lost=self._condition.lost,
            timeout_s=None if timeout is None else parse_duration(timeout, "timeout"),
            hang_after_s=self._options.hang_after_s,
        )
        ticket = self._turns.ticket() if ahead else None

        def follow() -> RunResult:
            what = "" if ahead else "this cell"
            with self._turns.held(ticket, what, lambda: run.interrupted):
                return self._follow(run, source)

        def interrupt() -> None:
            run.interrupt()
            self._turns.wake()

        return follow, interrupt

    def interrupt(self) -> tuple[int, ...]:
        """Interrupt the cell that runs, from any thread; return the ranks on which it runs.

        Raises
        ------
        UsageError
            No cell runs.
        """
        run = self._run or self._left
        ranks = run.unfinished if run is not None else ()
        if run is None or not ranks:
            raise UsageError(
                "Nothing to interrupt: no cell runs on this cluster. Use it while a cell runs "
                "that was started with %%distributed --noblock."
            )
        run.interrupt()
        return ranks

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
        running = self._condition.whole(ring=False)
        if running.engines.ring_broken:
            self._repair(run, running)

        def begin() -> None:
            self._begin(run, running)
            for rank in run.ranks:
                run.calls[rank] = running.engines.run(rank, run.number, source)

        try:
            return run.wait(begin)
        except CellError as error:
            error.output = run.output
            if isinstance(error, CellInterrupted):  # whoever stops it again has the answer already
                with contextlib.suppress(KeyboardInterrupt):
                    self._settle_uninterrupted(run, running)
            raise
        finally:
            self._settle_uninterrupted(run, running)

    def _begin(self, run: CellRun, running: Running) -> None:
        self._run = run
        vms = {info.rank: info.vm for info in running.engines.ranks}
        self._timings().describe(running.name, vms)
        self._timings().begin_cell(run.number)
        self._condition.set("running")
        self._idle.used()

    def _settle_uninterrupted(self, run: CellRun, running: Running) -> None:
        """Settle a cell once; an interrupt meanwhile is raised when that is done."""
        interrupted = False
        while self._run is run:
            try:
                uninterrupted(lambda: self._settle(run, running), running.engines.give_up_ring)
                break
            except KeyboardInterrupt:  # before it began, or while it ran
                interrupted = True
        if interrupted:
            raise KeyboardInterrupt

    def _settle(self, run: CellRun, running: Running) -> None:
        """Make the cluster ready again after a cell, or say why it is not."""
        condition, engines = self._condition, running.engines
        self._idle.used()
        self._timings().end_cell(run.number, run.records)
        self._left, self._run = run if run.unfinished else None, None
        torn = condition.lost() or run.unfinished
        if condition.state == "running" and run.broken and not torn:
            self._form_ring(running, run.say)
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
            self._conclude_if_running()

    def recover_earlier(self, running: Running) -> None:
        """Use ranks again, later, that go on with an earlier kernel's cell though interrupted."""
        in_background(lambda: self._recover_earlier(running))

    def _recover_earlier(self, running: Running) -> None:
        condition = self._condition
        ranks = running.engines.wait_until_left()
        with self.between():
            with condition.lock:
                if condition.running is not running or condition.state != "failed":
                    return
                for rank in ranks & running.engines.given_up:
                    running.engines.take_back(rank)
                if condition.lost():
                    self._conclude()
                    return
                condition.set("running")
            self._form_ring(running)
            self._conclude_if_running()

    def _repair(self, run: CellRun, running: Running) -> None:
        """Form the ring that the ranks lack before a cell.

        Raises
        ------
        ClusterStopped
            It could not be formed.
        CellInterrupted
            The user interrupted meanwhile.
        """

        def form() -> None:
            self._form_ring(running, run.say)
            self._conclude_if_running()

        try:
            uninterrupted(form, running.engines.give_up_ring)
        except KeyboardInterrupt:
            raise CellInterrupted("the cell was interrupted before it began") from None
        self._condition.whole()

    def _form_ring(self, running: Running, say: Callable[[str], None] = lambda _: None) -> None:
        """Form the ring, or be failed.

        Parameters
        ----------
        say
            Called with a line where it takes long.
        """
        ended, tries = threading.Event(), [""]

        def say_later() -> None:
            if not ended.wait(_NOTICE_S):
                say(f"Rebuilding the ring{tries[-1]}. Stop again to go on without it.\n")

        def report(text: str) -> None:
            tries.append(f": {text}".rstrip("."))
            self._condition.set("running", f"rebuilding the ring{tries[-1]}")

        self._condition.set("running", "rebuilding the ring")
        in_background(say_later)
        try:
            running.engines.reform(report)
        except WorkbenchError as error:
            self._condition.set("failed", f"the ring could not be rebuilt: {reason(error)}")
        finally:
            ended.set()

    def _conclude_if_running(self) -> None:
        """Conclude, unless the cluster was stopped or has failed meanwhile."""
        with self._condition.lock:
            if self._condition.state == "running":
                self._conclude()

    def _conclude(self) -> None:
        """Be ready, or say what is in the way."""
        condition = self._condition
        if condition.lost():
            condition.set("failed", condition.trouble())
        else:
            condition.set("ready")
