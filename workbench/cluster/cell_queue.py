"""The queue of cells, which run one after another."""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.cluster.attributes import RemoteAttributes
from workbench.cluster.cell_run import CellRun
from workbench.cluster.durations import parse_duration
from workbench.cluster.evidence.recorder import EvidenceRecorder
from workbench.cluster.outcomes import RunResult
from workbench.cluster.processes import ClusterProcesses, acknowledge
from workbench.cluster.profiling import Profiling
from workbench.cluster.prompts import refuse
from workbench.cluster.recovery import form_ring, reinstate_ranks, repair_ring
from workbench.cluster.state import ClusterState
from workbench.cluster.threads import in_background, uninterrupted
from workbench.errors import CellError, CellInterrupted, StartFailed, UsageError
from workbench.output.sink import NotebookSink, Sink
from workbench.ranks import Ranks, parse_ranks
from workbench.timings.separate import find_separate
from workbench.wire.prompt_messages import InputRequest
from workbench.wire.rank_messages import RankState
from workbench.wire.sample_messages import LineSamplesRequest
from workbench.wire.wakeup import SignalSafeEvent

if TYPE_CHECKING:
    from workbench.wire.rank_messages import CellMessage

_log = logging.getLogger(__name__)

_ANSWER_S = 2.0
"""Time limit for the line samples of a rank to arrive."""
_POLL_S = 0.05


class BackgroundRun(Future[RunResult]):
    """The future result of a cell that runs in the background.

    ``cancel()`` has no effect, because the cell is queued immediately. Use `interrupt`.

    Examples
    --------
    >>> run = BackgroundRun(lambda: print("interrupting the cell"))
    >>> run.interrupt()
    interrupting the cell
    True
    >>> run.set_result(RunResult("", {}))
    >>> run.interrupt()  # it has ended
    False
    """

    def __init__(self, interrupt: Callable[[], None]) -> None:
        super().__init__()
        self._interrupt = interrupt

    def interrupt(self) -> bool:
        """Stop the cell without waiting for its end; return False if it has already ended.

        ``result()`` then raises `CellInterrupted`. Variables are kept, and cells that were
        queued later run next. A cell that has not begun is removed from the queue.
        """
        if self.done():
            return False
        self._interrupt()
        return True


class CellQueue:
    """The cells of one cluster, in the order in which they were submitted.

    Parameters
    ----------
    first
        The number of the first cell.

    Attributes
    ----------
    latest
        The user's latest cell.
    evidence
        Writes a bundle if a cell fails or hangs.
    attributes
        Names of attributes of the ranks' objects.
    profiling
        The profiles of cells.
    """

    def __init__(self, state: ClusterState, first: int = 1) -> None:
        self._state = state
        self._numbers = itertools.count(first)
        self.latest: CellRun | None = None
        self._current: CellRun | None = None
        self._abandoned: CellRun | None = None
        """The cell that was given up while some ranks still run it."""
        self.evidence = EvidenceRecorder(state)
        self.attributes = RemoteAttributes(state)
        self.profiling = Profiling(state, lambda: self.busy)
        state.receive = self._receive
        state.before_stop = self.evidence.wait

    @property
    def current(self) -> CellRun | None:
        """The running cell, or None."""
        return self._current

    @property
    def busy(self) -> tuple[int, ...]:
        """The ranks of the running cell."""
        return self._current.ranks if self._current else ()

    def submit(
        self, source: str, ranks: Ranks, timeout: str | float | None, sink: Sink | None
    ) -> CellRun:
        """Return a new cell for `follow`; see `Cluster.run` for the arguments."""
        sink = NotebookSink() if sink is None else sink
        if not callable(getattr(sink, "poll", None)):
            raise UsageError(
                f"sink={sink!r}: not a sink. Give one, such as workbench.cluster.TextSink()."
            )
        if not isinstance(source, str):
            raise UsageError(
                f"run: the cell is of type {type(source).__name__}. Give its source as text (str)."
            )
        processes = self._state.usable()
        return CellRun(
            next(self._numbers),
            source,
            parse_ranks(ranks, self._state.n),
            sink,
            processes,
            self._state.lost,
            timeout_s=None if timeout is None else parse_duration(timeout, "timeout"),
            hang_after_s=self._state.options.hang_after_s,
        )

    def follow(
        self, run: CellRun, ticket: SignalSafeEvent | None = None, *, record: bool | None = None
    ) -> RunResult:
        """Run a cell when the previous cells have ended, and return its result.

        `ticket` is the cell's position in the queue (`FairLock.ticket`), by default the last one.
        `record` says whether the cell is recorded; None stands for a cell of the user, which uses
        the cluster's setting.
        """
        activity = "this cell" if ticket is None else ""
        with self._state.turns.held(ticket, activity, lambda: run.interrupts > 0):
            processes = self._state.usable()
            if processes.engines.backend.ring_broken:
                repair_ring(self._state, processes, run.output.note_after_end)
            evidence = self.evidence.begin_cell(run, processes)
            run.observe = evidence.observe
            try:
                return run.wait(lambda: self._begin(run, processes, record))
            except CellError as error:
                error.output = run.output.text
                error.add_evidence(evidence.conclude(error))
                if isinstance(error, CellInterrupted):  # a second interrupt changes nothing
                    with contextlib.suppress(KeyboardInterrupt):
                        self._settle_uninterrupted(run, processes)
                raise
            finally:
                self._settle_uninterrupted(run, processes)

    def interrupt(self, run: CellRun) -> None:
        """Interrupt a cell that runs or waits in the queue, from any thread."""
        run.interrupt()
        self._state.turns.wake()

    def interrupt_current(self) -> tuple[int, ...]:
        """Interrupt the running cell, from any thread; return its ranks.

        Raise `UsageError` if no cell runs.
        """
        run = self._current or self._abandoned
        ranks = run.unfinished if run is not None else ()
        if run is None or not ranks:
            raise UsageError(
                "Nothing to interrupt: no cell runs on this cluster. Use it while a cell runs "
                "that was started with %%distributed --noblock."
            )
        run.interrupt()
        return ranks

    def record(self, *, on: bool) -> None:
        """Switch the recording of the next cells on or off; see `Cluster.recording`."""
        state = self._state
        with state.lock:
            self._check_no_cell_runs(f"switch recording {'on' if on else 'off'}")
            if state.state in {"ready", "failed"}:
                state.processes.set_recording(on=on)
            else:
                state.timings.record(on=on)
            state.options = replace(state.options, record=on)
            state.set(state.state, state.message)
            _log.info("%s: recording is %s from now on", state.name, "on" if on else "off")

    def sample_lines(self, seconds: float) -> bool:
        """Sample the running cell for some seconds, or else all of the next cell.

        Return whether the running cell was sampled.
        """
        processes = self._state.usable()
        timings = self._state.timings
        running = self.busy
        samples = timings.line_samples
        if not (timings.running if running else timings.recording):
            raise UsageError(
                f"Cannot sample {'the running' if running else 'the next'} cell: it is not "
                "recorded. Switch recording on with %timings on before it."
            )
        sampled_ranks = set(running or range(self._state.n))
        samples.clear()
        for rank in sampled_ranks:
            processes.engines.send(rank, LineSamplesRequest(seconds))
        deadline = time.monotonic() + _ANSWER_S + (seconds if running else 0)
        while time.monotonic() < deadline and not sampled_ranks <= set(samples):
            time.sleep(_POLL_S)
        return bool(running)

    def measurable(self, source: str | None, ranks: Ranks) -> tuple[str, Ranks]:
        """Return the source and ranks of the cell that `Cluster.measure_overhead` runs."""
        from workbench.timings.overhead import no_iterations

        state = self._state
        latest = self.latest
        self._check_no_cell_runs("measure the overhead")
        if source is None:
            if latest is None:
                raise UsageError(
                    "Cannot measure the overhead: no cell has run. Run a training with "
                    "%%distributed, or give its source to cluster.measure_overhead()."
                )
            source = latest.source
            if ranks is None and not latest.on_all_ranks:  # after a resize, "all" is another set
                ranks = latest.ranks
            if state.timings.iterations_of(latest.number) == 0:
                raise no_iterations()
        return source, state.parse_ranks(ranks)

    def _check_no_cell_runs(self, activity: str) -> None:
        if self._state.state == "running":
            raise UsageError(
                f"Cannot {activity}: a cell runs on {self._state.name}. Wait until it has ended, "
                "or stop it with %cluster interrupt."
            )

    def _receive(self, rank: int, message: CellMessage) -> None:
        """Handle a message from a rank, in the control channel's thread."""
        run = self._current or self._abandoned
        if isinstance(message, RankState):
            self.evidence.states.receive(rank, message)
        # a rank also reports its state between cells
        if run is not None and message.cell in {run.number, None}:
            run.deliver(rank, message)
            return
        send = self._state.processes.engines.send
        if isinstance(message, InputRequest):
            refuse(send, rank, message)
        # a rank that still runs an earlier kernel's cell must be able to write its output
        acknowledge(send, rank, message)

    def _begin(self, run: CellRun, processes: ClusterProcesses, record: bool | None) -> None:
        state = self._state
        self._current = run
        run.prompts.report = state.report
        vms = {info.rank: info.vm for info in processes.engines.ranks}
        state.timings.describe(state.name, vms)
        recorded = state.timings.recording if record is None else record
        if state.timings.begin_cell(run.number, recorded=recorded, of_user=record is None):
            with contextlib.suppress(StartFailed):  # only the next kernel's remark is missing
                processes.save()
        state.begin()
        _log.info(
            "%s: cell %d begins on %d ranks, %s",
            *(state.name, run.number, len(run.ranks)),
            "recorded" if recorded else "not recorded",
        )
        is_ours = record is not None
        for rank in run.ranks:
            run.calls[rank] = processes.engines.begin(
                rank, "run_cell", run.number, run.source, recorded, is_ours
            )

    def _settle_uninterrupted(self, run: CellRun, processes: ClusterProcesses) -> None:
        """Call `_settle` once; raise an interrupt afterwards."""
        interrupted = False
        interrupt_init = processes.engines.backend.interrupt_init if run.broken else None
        while self._current is run:
            try:
                uninterrupted(lambda: self._settle(run, processes), interrupt_init)
                break
            except KeyboardInterrupt:  # the interrupt came before `_settle` began, or while it ran
                interrupted = True
        if interrupted:
            raise KeyboardInterrupt

    def _settle(self, run: CellRun, processes: ClusterProcesses) -> None:
        """Change the state after a cell, to ``ready`` or ``failed``."""
        state = self._state
        state.timings.end_cell(run.number, run.records)
        backend = state.options.backend
        if state.timings.note_failures(run.recording_failures):
            run.output.note_after_end(f"{state.timings.failures}\n")
        separate = find_separate(run.number, run.separate_iterations, state.n, backend)
        if separate is not None:
            state.timings.note_separate(separate)
            if not run.errors:
                run.output.note_after_end(f"{separate}\n")
        self._abandoned = run if run.unfinished else None
        self._current = None
        _log.info(
            "%s: cell %d has ended; failed ranks: %s; unfinished ranks: %s",
            *(state.name, run.number, sorted(rank for rank in run.errors if rank >= 0)),
            list(run.unfinished),
        )
        complete = not (state.lost() or run.unfinished)
        if state.state == "running" and run.broken and complete:
            form_ring(state, processes, run.output.note_after_end)
        with state.lock:
            if state.state != "running":
                return
            processes.engines.members.give_up(run.unfinished)
            state.settle()
        if run.unfinished:
            run.leave(lambda rank: self._ended_late(rank, run, processes))

    def _ended_late(self, rank: int, run: CellRun, processes: ClusterProcesses) -> None:
        """Reinstate a rank that has ended a stopped cell late."""
        if self._abandoned is run:
            in_background(
                lambda: reinstate_ranks(self._state, processes, [rank], lambda: run.broken)
            )
