"""Decide when an evidence bundle is written, and write it to the folder of the run."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.cluster.cell_run import CellRun
from workbench.cluster.evidence.states import RankStates, SeenState
from workbench.cluster.outcomes import STOPPED
from workbench.cluster.processes import ClusterProcesses
from workbench.cluster.state import ClusterState
from workbench.cluster.threads import LatestTask, in_background
from workbench.errors import (
    COLOURS,
    EVIDENCE,
    CellError,
    CellInterrupted,
    CellTimeout,
    RankError,
    RanksFailed,
    UsageError,
)
from workbench.ranks import phrase
from workbench.timings.folder import evidence_file
from workbench.timings.runs import FolderLike, checked_path, prune_evidence

if TYPE_CHECKING:
    from workbench.cluster.evidence.bundle import Bundle

_log = logging.getLogger(__name__)

_FIRST_S = 1.0
"""Maximum time for which a cell's error waits for the first version of its bundle."""
_ANSWER_S = 0.5
"""Maximum time for ranks to report their states, for a bundle on demand."""
_COMPLETE_S = 10.0
_SOURCE_ERRORS = {"SyntaxError", "IndentationError", "TabError", "KeyboardInterrupt"}
"""Names of errors that concern only the cell's source: no bundle is written for them."""
_RANK_ERRORS = {"RankLost", "RankFailed"}
"""Names of errors without a traceback, because no code of the cell has raised them."""


class EvidenceRecorder:
    """Writes the bundles of one cluster: for each cell that fails or hangs, and on demand.

    The first version of a bundle has what this kernel knows. A thread then adds the answers of the
    VMs.

    Attributes
    ----------
    states
        The states that the ranks have reported.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self.states = RankStates()
        self._pending: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._thread = LatestTask(self._work)

    def begin_cell(self, run: CellRun, processes: ClusterProcesses) -> CellEvidence:
        """Return the object that collects the evidence of a cell, which begins now."""
        return CellEvidence(self, self._state, run, processes)

    def submit(self, task: Callable[[], None]) -> None:
        """Schedule a task in the background thread, after the tasks that were submitted before."""
        with self._lock:
            self._pending.append(task)
        self._thread.request()

    def wait(self) -> None:
        """Wait until the bundles are complete, for at most 10 s."""
        self._thread.wait(_COMPLETE_S)

    def on_demand(self, out: FolderLike | None, run: CellRun | None) -> Path:
        """Write a bundle of the current state, and return its path. See `Cluster.bundle`."""
        path = None if out is None else Path(checked_path(out, "bundle")).expanduser().absolute()
        from workbench.cluster.evidence import collect

        state = self._state
        processes = self._state.processes
        if not processes.engines.ranks:
            raise UsageError(
                f"Cannot make an evidence bundle: cluster {state.name} was not started. Start it, "
                "or name a recorded run: workbench bundle RUN."
            )
        earlier = self.states.latest()
        lost = state.lost()
        asked_ranks = [info.rank for info in processes.engines.ranks if info.rank not in lost]
        request = self.states.request(asked_ranks, processes.engines.send)
        states = self.states.answers(request, asked_ranks, _ANSWER_S)
        context = collect.FailureContext("Made on demand.", states, earlier, lost, run)
        bundle = collect.initial_bundle(state, processes, context)
        if state.state not in {"stopping", "stopped"}:
            collect.complete(bundle, state, processes)
        target = self.path("now") if path is None else path
        if target is None:
            raise UsageError(
                "Cannot make an evidence bundle: this run has no folder on disk. Name a file with "
                "cluster.bundle('evidence.zip') or %cluster bundle --out evidence.zip."
            )
        try:
            bundle.write(target)
        except OSError as error:
            raise UsageError(
                f"{target}: cannot be written ({error.strerror or error}). Name another file with "
                "cluster.bundle('FILE') or %cluster bundle --out FILE."
            ) from error
        self.prune()
        return target

    def path(self, name: str) -> Path | None:
        """Return the path of a bundle's file; None if the run has no folder."""
        folder = self._state.timings.path
        return None if folder is None else evidence_file(folder, name)

    def prune(self) -> None:
        """Remove the oldest bundles of the run, if it has too many."""
        folder = self._state.timings.path
        if folder is not None:
            with contextlib.suppress(OSError):
                prune_evidence(folder)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._pending:
                    return
                task = self._pending.pop(0)
            with contextlib.suppress(Exception):  # the task reports its own errors
                task()


class CellEvidence:
    """Collects the evidence of one cell, and writes at most one bundle of it."""

    def __init__(
        self,
        recorder: EvidenceRecorder,
        state: ClusterState,
        run: CellRun,
        processes: ClusterProcesses,
    ) -> None:
        self._recorder = recorder
        self._state = state
        self._run = run
        self._processes = processes
        self._asked_ranks: list[int] = []
        self._request: float | None = None
        self._earlier: dict[int, SeenState] = {}
        self._stalled = self._failed = False
        self._output_line = ""
        """The line that the cell's output shows next; empty for none."""
        self._status_line = ""
        """The line about the latest version of the bundle: its file, or why it was not written."""
        self._error: CellError | None = None
        self._writing = threading.Lock()
        self._reporting = threading.Lock()
        self._written = threading.Event()
        recorder.states.forget()

    def observe(self, stalled: bool, failed: bool) -> str:
        """Request the ranks' states when they stall, and again when the first rank has failed.

        Parameters
        ----------
        stalled
            Whether the ranks make no progress now.
        failed
            Whether a rank has failed.

        Returns
        -------
        str
            A line for the cell's output; empty for none.
        """
        if failed and not self._failed:
            self._failed = True
            _log.debug("Cell %s: a rank has failed", self._run.number)
            self._request_states()
        elif stalled and not self._stalled:
            self._stalled = True
            _log.info("Cell %s: the ranks make no progress", self._run.number)
            self._request_states()
            reason = f"Cell {self._run.number} made no progress."
            with contextlib.suppress(RuntimeError):  # no thread can start
                in_background(lambda: self._write(reason, None, show=True))
        note = self._output_line
        self._output_line = ""
        return note

    def conclude(self, error: CellError) -> str:
        """Write the bundle of a failed cell, and return a line for its error; empty for none."""
        if isinstance(error, CellInterrupted):
            return self._status_line
        if not _concerns_ranks(error):
            return ""
        reason = _reason(self._run.number, error)
        with self._reporting:
            self._error = error
            self._status_line = f"Evidence: is being written to {self._recorder.path(self._name)}"
        try:
            in_background(lambda: self._write(reason, error))
            self._written.wait(_FIRST_S)
        except RuntimeError as problem:  # no thread can start
            return f"Evidence: not written: {problem}"
        except KeyboardInterrupt:  # the cell has ended, and its error comes first
            pass
        return self._status_line

    @property
    def _name(self) -> str:
        return f"cell-{self._run.number}"

    def _request_states(self) -> None:
        lost = self._state.lost()
        self._earlier = self._recorder.states.latest()
        engines = self._processes.engines
        self._asked_ranks = [info.rank for info in engines.ranks if info.rank not in lost]
        self._request = self._recorder.states.request(self._asked_ranks, engines.send)

    def _write(self, reason: str, error: CellError | None, *, show: bool = False) -> None:
        """Write the first version, and schedule the complete one. Called in a thread."""
        from workbench.cluster.evidence import collect

        path = self._recorder.path(self._name)
        recorder = self._recorder
        try:
            if path is None:
                self._report(error, "Evidence: not written: this run has no folder on disk")
                return
            limit_s = _ANSWER_S if error is None else _ANSWER_S / 2
            request = self._request
            states = (
                {}
                if request is None
                else recorder.states.answers(request, self._asked_ranks, limit_s)
            )
            lost = self._state.lost()
            context = collect.FailureContext(reason, states, self._earlier, lost, self._run, error)
            bundle = collect.initial_bundle(self._state, self._processes, context)
            self._save(bundle, error, path)
            recorder.prune()
            if show and self._status_line == f"{EVIDENCE}{path}":
                self._output_line = f"{self._status_line}\n"
        except Exception as problem:  # noqa: BLE001 - the user's own error must not be lost
            self._report(error, f"Evidence: not written: {type(problem).__name__}: {problem}")
            return
        finally:
            if error is not None:
                self._written.set()
        recorder.submit(lambda: self._complete(bundle, error, path))

    def _complete(self, bundle: Bundle, error: CellError | None, path: Path) -> None:
        """Write the version with the answers of the VMs. Keep the first version if that fails."""
        from workbench.cluster.evidence import collect

        if not self._is_newest(error):  # ask the VMs only for the newest bundle
            return
        collect.complete(bundle, self._state, self._processes)
        with self._writing, contextlib.suppress(OSError):
            if self._is_newest(error):
                bundle.write(path)
        self._recorder.prune()

    def _is_newest(self, error: CellError | None) -> bool:
        """Return whether no newer bundle exists: an error replaces the bundle of a stall."""
        return error is self._error

    def _report(self, error: CellError | None, line: str) -> None:
        """Store the line about a bundle, unless there is a newer bundle."""
        _log.debug("Cell %s: %s", self._run.number, line)
        with self._reporting:
            if self._is_newest(error):
                self._status_line = line

    def _save(self, bundle: Bundle, error: CellError | None, path: Path) -> None:
        try:
            with self._writing:
                if not self._is_newest(error):
                    return
                bundle.write(path)
        except OSError as problem:
            self._report(
                error,
                f"Evidence: not written to {path} ({problem.strerror or problem}). Free space "
                "there, or name another file with %cluster bundle --out FILE",
            )
        else:
            self._report(error, f"{EVIDENCE}{path}")


def _concerns_ranks(error: CellError) -> bool:
    """Return whether an error concerns the ranks, rather than only the cell's source."""
    if isinstance(error, CellTimeout):
        return True
    if not isinstance(error, RanksFailed):
        return False
    return any(map(_concerns_its_rank, error.errors.values()))


def _concerns_its_rank(error: RankError) -> bool:
    """Return whether a rank's error has a cause other than the source or a stopped cell."""
    if error.name in _RANK_ERRORS:
        return error.message != STOPPED
    # An error that only gives advice, such as the error of input(), has no traceback.
    text = COLOURS.sub("", error.traceback).strip()
    is_advice = text in {"", f"{error.name}: {error.message}".strip()}
    return error.name not in _SOURCE_ERRORS and not is_advice


def _reason(cell: int, error: CellError) -> str:
    if isinstance(error, CellTimeout):
        return f"Cell {cell} was not done in time on {phrase(error.unfinished)}."
    assert isinstance(error, RanksFailed)
    lost = [rank for rank, rank_error in error.errors.items() if rank_error.name == "RankLost"]
    if lost:
        return f"Cell {cell} failed: {phrase(lost, 'was lost', 'were lost')}."
    names = sorted({rank_error.name for rank_error in error.errors.values()})
    return f"Cell {cell} failed on {phrase(error.errors)}: {', '.join(names)}."
