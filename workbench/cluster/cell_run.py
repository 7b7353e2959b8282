"""Run one cell: process the messages of its ranks, stop it, and return its result."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from workbench.cluster.cell_inbox import CellInbox
from workbench.cluster.outcomes import RunResult, ValueNotSent, failure, failure_outside_cell
from workbench.cluster.processes import ClusterProcesses, acknowledge
from workbench.cluster.prompts import CellPrompts, refuse
from workbench.cluster.stalls import GRACE_S, StallReport, Stopping, stack_text, stop_outcome
from workbench.cluster.stuck_ranks import StuckRankMonitor
from workbench.cluster.threads import defer_interrupts, uninterrupted
from workbench.errors import CellInterrupted, CellTimeout, RankError, RanksFailed
from workbench.output.cell_output import CellOutput
from workbench.output.differing_parts import rank_identities
from workbench.output.sink import Sink
from workbench.ranks import phrase
from workbench.wire.prompt_messages import InputRequest
from workbench.wire.rank_messages import CellEnded, CellMessage, Output, RankState

_log = logging.getLogger(__name__)

_HURRY_S = 3.0
"""A second interrupt within this time frees the ranks by force; a later one abandons them."""
_STEP_S = 0.25
"""After this time, the processing of output pauses for other messages."""


class CellRun:
    """A cell; `wait` runs it and returns when it has ended.

    Parameters
    ----------
    number
        The cell's number in its cluster.
    sink
        Shows the cell's output.
    lost
        Returns why ranks can no longer answer, by rank.
    timeout_s
        The ranks are interrupted after this time; None for never.
    hang_after_s
        A collective that takes longer is explained in the output; None for never.
    """

    observe: Callable[[bool, bool], str] = staticmethod(lambda _stalled, _failed: "")
    """As `CellEvidence.observe`."""

    def __init__(
        self,
        number: int,
        source: str,
        ranks: tuple[int, ...],
        sink: Sink,
        processes: ClusterProcesses,
        lost: Callable[[], dict[int, str]],
        *,
        timeout_s: float | None,
        hang_after_s: float | None,
    ) -> None:
        send = processes.engines.send
        backend = processes.engines.backend
        ring = tuple(range(len(processes.engines.ranks)))
        self.number = number
        self.source = source
        self.ranks = ranks
        self.on_all_ranks = ranks == ring
        self.records: dict[int, int] = {}
        self.separate_iterations: dict[int, int] = {}
        self.recording_failures: dict[int, dict[str, str]] = {}
        self.outstanding = 0
        self._initialized = True
        self.errors: dict[int, RankError] = {}
        self.calls: dict[int, Future[Any]] = {}
        self.monitor = StuckRankMonitor(number, send, set(ring) - set(ranks))
        self._send = send
        self._stall_report = StallReport(
            ranks, hang_after_s, send, ring, backend.explain_numbers, backend.wait_limit
        )
        self._stopping: Stopping | None = None
        self._on_late_end: Callable[[int], None] | None = None
        self._inbox = CellInbox(send)
        self._unfinished = set(ranks)
        self._values: dict[int, bytes | ValueNotSent | None] = {}
        self._identities = rank_identities(processes.engines.ranks)
        self.output = CellOutput(ranks, sink, self._identities)
        self.prompts = CellPrompts(send, self.output)
        self._lost = lost
        self._backend = backend
        self._peer_lost = False
        self._freed_by_interrupt: float | None = None
        """When the ranks that wait in MPI for a lost rank were interrupted."""
        self._timeout_s = timeout_s
        self.interrupts = 0
        """Calls of `interrupt` that `wait` has not processed yet."""

    @property
    def broken(self) -> bool:
        """Whether the ring must be formed again before the next cell."""
        return self.monitor.released or self.outstanding > 0 or not self._initialized

    @property
    def unfinished(self) -> tuple[int, ...]:
        """The ranks that have begun the cell and not ended it."""
        return tuple(sorted(self._unfinished)) if self.calls else ()

    def interrupt(self) -> None:
        """Stop the cell, from any thread, as an interrupt of the thread in `wait` does.

        If `wait` has given the cell up, interrupt it again on the ranks that still run it.
        """
        self.interrupts += 1
        if self._on_late_end is not None:
            self._interrupt_unfinished()
            return
        self._inbox.wake()

    def deliver(self, rank: int, message: CellMessage) -> None:
        """Accept a message from a rank, in any thread."""
        if self._inbox.put(rank, message) or self._on_late_end is None:
            return
        acknowledge(self._send, rank, message)
        if isinstance(message, InputRequest):
            self.prompts.add(rank, message)  # the request is refused there
        if isinstance(message, CellEnded) and rank in self._unfinished:
            self._end(rank, message, time.monotonic())
            _log.info("rank %d has ended cell %d late", rank, self.number)
            self._on_late_end(rank)

    def leave(self, on_late_end: Callable[[int], None]) -> None:
        """Give up the cell; call `on_late_end`, in a thread, with each rank that ends it later."""
        _log.info("cell %d is given up; ranks that still run it: %s", self.number, self.unfinished)
        self._on_late_end = on_late_end
        for event in self._inbox.close():
            self.deliver(*event)
        self._interrupt_unfinished()  # an interrupt may have come after the end of `wait`

    def _interrupt_unfinished(self) -> None:
        """Interrupt the ranks that still run the cell, if an interrupt was not processed yet."""
        if self.interrupts:
            self.interrupts = 0
            self.monitor.interrupt(self._unfinished)

    def wait(self, begin: Callable[[], None]) -> RunResult:
        """Show the output until every rank has ended the cell, and return the result.

        `begin` begins the cell on all of its ranks, even if it is interrupted. `RanksFailed`,
        `CellTimeout` and `CellInterrupted` are raised after every rank is free again. An exception
        of the sink interrupts the ranks, and is raised after they are free again.
        """
        try:
            uninterrupted(begin)
            self._follow()
        except KeyboardInterrupt:
            if not self.calls:
                raise CellInterrupted("the cell was interrupted before it began") from None
            self._stop("interrupted")
            raise CellInterrupted(
                f"the cell was interrupted on {phrase(self.ranks)}; "
                f"{stop_outcome(self._stopping, self._unfinished)}"
            ) from None
        except Exception:  # the sink failed, so that further output would be invisible
            if self.calls:
                self.output.replace_sink()
                self._stop("interrupted")
            raise
        if self._unfinished:
            self._time_out()
        self.output.finish()
        self._inbox.confirm()
        if self.errors:
            raise self._failure()
        return RunResult(self.output.text, self._values)

    def _failure(self) -> RanksFailed:
        stall = self.monitor.stall
        interrupted = self._freed_by_interrupt is not None
        return failure(
            self.errors,
            identities=self._identities,
            released=self.monitor.released or not self._initialized,
            stall=f"{stall} {self.monitor.fix or self._backend.uneven_fix}" if stall else "",
            is_peer_error=lambda error: (
                (interrupted and error.name == "KeyboardInterrupt")
                or self._backend.is_peer_error(error)
            ),
        )

    def _time_out(self) -> None:
        unfinished = tuple(sorted(self._unfinished))
        self.observe(False, True)  # the interrupt would change what the ranks do
        stacks = self.monitor.stacks(set(unfinished), self._step)
        self._stop("timed out")
        raise CellTimeout(
            f"the cell was not done after {self._timeout_s:g} s on {phrase(unfinished)}; "
            f"{stop_outcome(self._stopping, self._unfinished)}\n{stack_text(stacks)}".rstrip(),
            unfinished,
        )

    def _follow(self) -> None:
        limit_s = float("inf") if self._timeout_s is None else self._timeout_s
        deadline = time.monotonic() + limit_s
        while self._unfinished and time.monotonic() < deadline:
            self._advance()
            deadline += self.prompts.ask(self._follow_prompt, lambda: self.interrupts > 0)
            with defer_interrupts():  # `_check` may start a thread, which must be completed
                self._check()

    def _follow_prompt(self, rank: int) -> bool:
        """Follow the ranks while the user types for one of them; return whether it still waits."""
        self._step()
        self._drop_lost()
        self._check(at_prompt=True)
        return rank in self._unfinished and not self.interrupts

    def _check(self, *, at_prompt: bool = False) -> None:
        """Report what ranks wait for, and free the ranks that wait forever."""
        now = time.monotonic()
        rank_failed = bool(self.errors)
        report = self._stall_report
        text = "" if rank_failed else report.check(self._unfinished, now, soon=at_prompt)
        for note in filter(None, (text, self.observe(bool(text) and not at_prompt, rank_failed))):
            self.output.note(note)
        if rank_failed or len(self._unfinished) < len(self.ranks) or not self.on_all_ranks:
            self.monitor.check(
                self._unfinished, now, rank_failed=rank_failed, peer_lost=self._peer_lost
            )
        if self._peer_lost and self.monitor.released and self._backend.controller == "MPI":
            self._free_from_mpi(now)

    def _free_from_mpi(self, now: float) -> None:
        """Interrupt the ranks that wait for a lost rank, then give up those that still wait.

        MPI never ends their collective. A wait can only be interrupted while recording is on.
        """
        if self._freed_by_interrupt is None:
            self._freed_by_interrupt = now
            self.monitor.interrupt(self._unfinished)
        elif now - self._freed_by_interrupt > _HURRY_S:
            for rank in list(self._unfinished):
                self._unfinished.discard(rank)
                self.output.end(rank, now)
                reason = "it waits in MPI for a rank that is lost, and cannot be freed"
                self.errors[rank] = RankError("RankLost", reason, "")

    def _advance(self) -> None:
        if self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt
        self._step()
        with defer_interrupts():  # an interrupt here would leave the lock of a future locked
            self._drop_lost()

    def _stop(self, reason: str) -> None:
        """Interrupt the ranks that run, free those that wait, and follow them to their end."""
        self.prompts.stop()
        self._stopping = Stopping(self._inbox.ended)
        self.errors.setdefault(-1, RankError(reason, "", ""))
        again = False
        while True:
            try:
                with defer_interrupts():
                    self.monitor.interrupt(self._unfinished)
                    _log.info(
                        "stopping cell %d on ranks %s: %s",
                        *(self.number, sorted(self._unfinished), reason),
                    )
                    if again:
                        self.monitor.release(self._unfinished, peer_lost=self._peer_lost)
                self._follow_stop(self._stopping)
                break
            except KeyboardInterrupt:
                again = True
                if self._stopping.age_s > _HURRY_S:
                    break
        self.output.finish()
        self._inbox.confirm()

    def _follow_stop(self, stopping: Stopping) -> None:
        """Follow the ranks as long as one of them may end soon."""
        while self._unfinished and stopping.should_wait(self._unfinished):
            self._advance()
            with defer_interrupts():
                self.monitor.check(
                    self._unfinished, time.monotonic(), rank_failed=True, peer_lost=self._peer_lost
                )
                if stopping.age_s > GRACE_S and not self.monitor.released:
                    self.monitor.release(self._unfinished, peer_lost=self._peer_lost)
            if self._unfinished and (text := stopping.notice(self._unfinished)):
                self.output.note(text)

    def _step(self) -> None:
        """Process the messages that have arrived, then write the output that is ready."""
        inbox = self._inbox
        inbox.wait()
        with defer_interrupts():  # an interrupt here would lose messages
            for answer in inbox.take_answers():
                self._handle_answer(*answer)
            until = time.monotonic() + _STEP_S
            while inbox.has_events and self.output.written and time.monotonic() < until:
                rank, message = inbox.take_event()
                if rank in self._unfinished and isinstance(message, CellEnded):
                    self._end(rank, message, time.monotonic())
                elif isinstance(message, InputRequest):
                    # a rank that has ended the cell can still ask, from a thread
                    is_running = rank in self._unfinished
                    handle = self.prompts.add if is_running else partial(refuse, self._send)
                    handle(rank, message)
                elif rank in self._unfinished and isinstance(message, Output):
                    self.output.add(rank, message.pieces(), time.monotonic())
            self.output.write(time.monotonic(), time.monotonic() + _STEP_S)
            if self.output.written:
                inbox.confirm()
            if inbox.has_events or not self.output.written:
                inbox.wake()

    def _handle_answer(self, rank: int, state: RankState) -> None:
        if not state.for_stall_report:
            self.monitor.answer(rank, state)
        if rank not in self._unfinished:
            return
        if state.for_stall_report:
            self._stall_report.answer(rank, state)
        elif self._stopping is not None:
            self._stopping.answer(rank, state)

    def _end(self, rank: int, ended: CellEnded, now: float) -> None:
        self._unfinished.discard(rank)
        self.output.end(rank, now)
        self.records[rank] = ended.records
        self.separate_iterations[rank] = ended.separate_iterations
        self.recording_failures[rank] = ended.recording_failures
        self._initialized &= ended.initialized
        self.outstanding += ended.outstanding if ended.error else 0
        self.monitor.end(rank, ended, now)
        if ended.error:
            self.errors[rank] = ended.error
        self._values[rank] = ValueNotSent(ended.not_sent) if ended.not_sent else ended.value

    def _drop_lost(self) -> None:
        errors = {rank: call.exception() for rank, call in self.calls.items() if call.done()}
        failed = {rank: error for rank, error in errors.items() if error is not None}
        # the losses are read after the errors, because a loss explains an error
        lost = self._lost() if self._unfinished else {}
        unprocessed = self._inbox.waiting() if lost else set()
        for rank in self._unfinished & (set(failed) | set(lost) - unprocessed):
            self._unfinished.discard(rank)
            self.output.end(rank, time.monotonic())
            self.errors[rank] = (
                RankError("RankLost", lost[rank], "")
                if rank in lost
                else failure_outside_cell(rank, failed[rank])
            )
            self._peer_lost |= rank in lost
