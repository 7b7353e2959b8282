"""One cell: what its ranks send, how it is stopped, and how it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from workbench.cluster.cell_inbox import CellInbox
from workbench.cluster.outcomes import RunResult, ValueNotSent, failure, failure_outside_cell
from workbench.cluster.processes import ClusterProcesses, acknowledge
from workbench.cluster.prompts import Prompts, refuse
from workbench.cluster.stalls import GRACE_S, StallReport, Stopping, stack_text, stop_outcome
from workbench.cluster.stuck_ranks import StuckRankMonitor
from workbench.cluster.threads import interrupts_later, uninterrupted
from workbench.errors import CellInterrupted, CellTimeout, RankError, RanksFailed
from workbench.output.cell_output import CellOutput
from workbench.output.differing_parts import rank_identities
from workbench.output.sink import Sink
from workbench.ranks import phrase
from workbench.wire.prompt_messages import InputRequest
from workbench.wire.rank_messages import CellEnded, CellMessage, Output, RankState

_HURRY_S = 3.0
"""A second interrupt within this time frees the ranks by force; a later one abandons them."""
_STEP_S = 0.25
"""How long output may be processed before other messages are checked."""


class CellRun:
    """A cell; `wait` runs it and returns when it has ended.

    Parameters
    ----------
    number
        The cell's number in its cluster.
    sink
        Where its output is shown.
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
        send, backend = processes.engines.send, processes.engines.backend
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
        texts = backend.explain_numbers, backend.wait_limit
        self._stall_report = StallReport(ranks, hang_after_s, send, ring, *texts)
        self._stopping: Stopping | None = None
        self._late: Callable[[int], None] | None = None
        self._inbox = CellInbox(send)
        self._unfinished = set(ranks)
        self._values: dict[int, bytes | ValueNotSent | None] = {}
        self._identities = rank_identities(processes.engines.ranks)
        self.output = CellOutput(ranks, sink, self._identities)
        self.prompts = Prompts(send, self.output)
        self._lost = lost
        self._backend = backend
        self._peer_lost = False
        self._freed_by_interrupt: float | None = None
        """When ranks that wait in MPI for a lost one were interrupted."""
        self._timeout_s = timeout_s
        self.interrupts = 0
        """Calls of `interrupt` that `wait` has not processed yet."""

    @property
    def broken(self) -> bool:
        """Whether the ring must be formed again before the next cell."""
        return self.monitor.released or self.outstanding > 0 or not self._initialized

    @property
    def unfinished(self) -> tuple[int, ...]:
        """The ranks in which the cell has begun and not ended."""
        return tuple(sorted(self._unfinished)) if self.calls else ()

    def interrupt(self) -> None:
        """Stop the cell, from any thread, as an interrupt of the thread in `wait` does.

        A cell that `wait` has given up is interrupted again on the ranks that still run it.
        """
        self.interrupts += 1
        if self._late is not None:
            self._interrupt_late()
            return
        self._inbox.wake()

    def deliver(self, rank: int, message: CellMessage) -> None:
        """Receive a message from a rank, in any thread."""
        if self._inbox.put(rank, message) or self._late is None:
            return
        acknowledge(self._send, rank, message)
        if isinstance(message, InputRequest):
            self.prompts.take(rank, message)  # refuses it
        if isinstance(message, CellEnded) and rank in self._unfinished:
            self._end(rank, message, time.monotonic())
            self._late(rank)

    def leave(self, late: Callable[[int], None]) -> None:
        """Give up the cell; call `late`, in a thread, with each rank that ends it later."""
        self._late = late
        for event in self._inbox.close():
            self.deliver(*event)
        self._interrupt_late()  # an interrupt that came after the end of `wait`

    def _interrupt_late(self) -> None:
        """Interrupt the ranks that still run the cell, if an interrupt was not processed yet."""
        if self.interrupts:
            self.interrupts = 0
            self.monitor.interrupt(self._unfinished)

    def wait(self, begin: Callable[[], None]) -> RunResult:
        """Show the output until every rank has ended the cell, and return the result.

        `begin` begins the cell on all of its ranks, even if it is interrupted. `RanksFailed`,
        `CellTimeout` and `CellInterrupted` are raised after every rank is free again. So is an
        exception of the sink, after which the ranks are interrupted.
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
        except Exception:  # of the sink: nobody would see what the ranks still do
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
        stall, interrupted = self.monitor.stall, self._freed_by_interrupt is not None
        return failure(
            self.errors,
            known=self._identities,
            released=self.monitor.released or not self._initialized,
            stall=f"{stall} {self.monitor.cure or self._backend.uneven_fix}" if stall else "",
            is_peer_error=lambda error: (
                (interrupted and error.name == "KeyboardInterrupt")
                or self._backend.is_peer_error(error)
            ),
        )

    def _time_out(self) -> None:
        unfinished = tuple(sorted(self._unfinished))
        self.observe(False, True)  # before the interrupt changes what the ranks do
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
            deadline += self.prompts.ask(self._attend, lambda: self.interrupts > 0)
            with interrupts_later():  # it may start a thread, whose start must be completed
                self._check()

    def _attend(self, rank: int) -> bool:
        """Follow the ranks while the user types for one of them; return whether it still waits."""
        self._step()
        self._drop_lost()
        self._check(at_prompt=True)
        return rank in self._unfinished and not self.interrupts

    def _check(self, *, at_prompt: bool = False) -> None:
        """Report what ranks wait for, and free those that wait forever."""
        now, rank_failed, report = time.monotonic(), bool(self.errors), self._stall_report
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
        """Interrupt the ranks that wait for a lost one, and then give up those that still do.

        MPI never ends their collective. Only while recording is on can a wait be interrupted.
        """
        if self._freed_by_interrupt is None:
            self._freed_by_interrupt = now
            self.monitor.interrupt(self._unfinished)
        elif now - self._freed_by_interrupt > _HURRY_S:
            for rank in list(self._unfinished):
                self._unfinished.discard(rank)
                self.output.end(rank, now)
                why = "it waits in MPI for a rank that is lost, and cannot be freed"
                self.errors[rank] = RankError("RankLost", why, "")

    def _advance(self) -> None:
        if self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt
        self._step()
        with interrupts_later():  # an interrupt here would leave the lock of a future locked
            self._drop_lost()

    def _stop(self, why: str) -> None:
        """Interrupt the ranks that run, free those that wait, and follow them to their end."""
        self.prompts.stop()
        self._stopping = Stopping(self._inbox.ended)
        self.errors.setdefault(-1, RankError(why, "", ""))
        again = False
        while True:
            try:
                with interrupts_later():
                    self.monitor.interrupt(self._unfinished)
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
        while self._unfinished and stopping.waits(self._unfinished):
            self._advance()
            with interrupts_later():
                self.monitor.check(
                    self._unfinished, time.monotonic(), rank_failed=True, peer_lost=self._peer_lost
                )
                if stopping.age_s > GRACE_S and not self.monitor.released:
                    self.monitor.release(self._unfinished, peer_lost=self._peer_lost)
            if self._unfinished and (text := stopping.text(self._unfinished)):
                self.output.note(text)

    def _step(self) -> None:
        """Process what has arrived, then write the output that is ready."""
        inbox = self._inbox
        inbox.wait()
        with interrupts_later():  # an interrupt here would lose messages
            for answer in inbox.take_answers():
                self._take_answer(*answer)
            until = time.monotonic() + _STEP_S
            while inbox.has_events and self.output.written and time.monotonic() < until:
                rank, message = inbox.take_event()
                if rank in self._unfinished and isinstance(message, CellEnded):
                    self._end(rank, message, time.monotonic())
                elif isinstance(message, InputRequest):
                    running = rank in self._unfinished  # else a thread that the cell has left
                    take = self.prompts.take if running else partial(refuse, self._send)
                    take(rank, message)
                elif rank in self._unfinished and isinstance(message, Output):
                    self.output.add(rank, message.pieces(), time.monotonic())
            self.output.write(time.monotonic(), time.monotonic() + _STEP_S)
            if self.output.written:
                inbox.confirm()
            if inbox.has_events or not self.output.written:
                inbox.wake()

    def _take_answer(self, rank: int, state: RankState) -> None:
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
        lost = self._lost() if self._unfinished else {}  # after them: a loss explains them
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
