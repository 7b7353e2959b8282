"""Decides when an evidence bundle is written, and writes it next to the run."""

from __future__ import annotations

import contextlib
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

_FIRST_S = 1.0
"""How long the error of a cell waits for the first version of its bundle."""
_ANSWER_S = 0.5
"""How long ranks may take to report their states, for a bundle on demand."""
_COMPLETE_S = 10.0
_OF_THE_SOURCE = {"SyntaxError", "IndentationError", "TabError", "KeyboardInterrupt"}
"""Errors that say nothing about the ranks: no bundle is written."""
_OF_THE_RANK = {"RankLost", "RankFailed"}
"""Errors that have no traceback because no code of the cell has raised them."""


class EvidenceRecorder:
    """Writes the bundles of one cluster: one for a cell that fails or hangs, and on demand.

    The first version has what this kernel knows. A thread then adds what the VMs answer.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self.states = RankStates()
        self._pending: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._thread = LatestTask(self._work)

    def of_cell(self, run: CellRun, processes: ClusterProcesses) -> CellEvidence:
        """Return the evidence of a cell that begins."""
        return CellEvidence(self, self._state, run, processes)

    def submit(self, task: Callable[[], None]) -> None:
        """Have a task done in the thread, after those before."""
        with self._lock:
            self._pending.append(task)
        self._thread.request()

    def wait(self) -> None:
        """Wait until the bundles are complete, but not for long."""
        self._thread.wait(_COMPLETE_S)

    def on_demand(self, out: FolderLike | None, run: CellRun | None) -> Path:
        """Write a bundle of the current state, and return its path; see `Cluster.bundle`."""
        path = None if out is None else Path(checked_path(out, "bundle")).expanduser().absolute()
        from workbench.cluster.evidence import collect

        state, processes = self._state, self._state.processes
        if not processes.engines.ranks:
            raise UsageError(
                f"Cannot make an evidence bundle: cluster {state.name} was not started. Start it, "
                "or name a recorded run: workbench bundle RUN."
            )
        earlier, lost = self.states.latest(), state.lost()
        asked = [info.rank for info in processes.engines.ranks if info.rank not in lost]
        request = self.states.request(asked, processes.engines.send)
        states = self.states.answers(request, asked, _ANSWER_S)
        scene = collect.Scene("Made on demand.", states, earlier, lost, run)
        bundle = collect.known(state, processes, scene)
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
        """Return the file of a bundle; None if the run has no folder."""
        folder = self._state.timings.path
        return None if folder is None else evidence_file(folder, name)

    def prune(self) -> None:
        """Remove the oldest bundles."""
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
            with contextlib.suppress(Exception):  # it reports its own errors
                task()


class CellEvidence:
    """The evidence of one cell, which has at most one bundle."""

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
        self._asked: list[int] = []
        self._request: float | None = None
        self._earlier: dict[int, SeenState] = {}
        self._stalled = self._failed = False
        self._note = ""
        """What the cell's output shows next."""
        self._line = ""
        """What became of the latest version of the bundle."""
        self._error: CellError | None = None
        self._writing = threading.Lock()
        self._reporting = threading.Lock()
        self._written = threading.Event()
        recorder.states.forget()

    def observe(self, stalled: bool, failed: bool) -> str:
        """Request the ranks' states once they stall, and when the first has failed.

        Return a line for the cell's output, or an empty string.
        """
        if failed and not self._failed:
            self._failed = True
            self._ask()
        elif stalled and not self._stalled:
            self._stalled = True
            self._ask()
            reason = f"Cell {self._run.number} made no progress."
            with contextlib.suppress(RuntimeError):  # no thread can start
                in_background(lambda: self._write(reason, None, show=True))
        note, self._note = self._note, ""
        return note

    def conclude(self, error: CellError) -> str:
        """Write the bundle of a cell that has failed; return a line for the error, or nothing."""
        if isinstance(error, CellInterrupted):
            return self._line
        if not _is_evident(error):
            return ""
        reason = _reason(self._run.number, error)
        with self._reporting:
            self._error = error
            self._line = f"Evidence: is being written to {self._recorder.path(self._name)}"
        try:
            in_background(lambda: self._write(reason, error))
            self._written.wait(_FIRST_S)
        except RuntimeError as problem:  # no thread can start
            return f"Evidence: not written: {problem}"
        except KeyboardInterrupt:  # the cell has ended, and its error comes first
            pass
        return self._line

    @property
    def _name(self) -> str:
        return f"cell-{self._run.number}"

    def _ask(self) -> None:
        lost = self._state.lost()
        self._earlier = self._recorder.states.latest()
        engines = self._processes.engines
        self._asked = [info.rank for info in engines.ranks if info.rank not in lost]
        self._request = self._recorder.states.request(self._asked, engines.send)

    def _write(self, reason: str, error: CellError | None, *, show: bool = False) -> None:
        """Write the first version, and submit the complete one; called in a thread."""
        from workbench.cluster.evidence import collect

        path, recorder = self._recorder.path(self._name), self._recorder
        try:
            if path is None:
                self._report(error, "Evidence: not written: this run has no folder on disk")
                return
            limit_s = _ANSWER_S if error is None else _ANSWER_S / 2
            asked = self._request
            states = {} if asked is None else recorder.states.answers(asked, self._asked, limit_s)
            lost = self._state.lost()
            scene = collect.Scene(reason, states, self._earlier, lost, self._run, error)
            bundle = collect.known(self._state, self._processes, scene)
            self._save(bundle, error, path)
            recorder.prune()
            if show and self._line == f"{EVIDENCE}{path}":
                self._note = f"{self._line}\n"
        except Exception as problem:  # noqa: BLE001 - the user's own error must not be lost
            self._report(error, f"Evidence: not written: {type(problem).__name__}: {problem}")
            return
        finally:
            if error is not None:
                self._written.set()
        recorder.submit(lambda: self._complete(bundle, error, path))

    def _complete(self, bundle: Bundle, error: CellError | None, path: Path) -> None:
        """Write the version with the answers of the VMs; the first one is kept if that fails."""
        from workbench.cluster.evidence import collect

        if not self._is_newest(error):  # the VMs are asked for the newest one only
            return
        collect.complete(bundle, self._state, self._processes)
        with self._writing, contextlib.suppress(OSError):
            if self._is_newest(error):
                bundle.write(path)
        self._recorder.prune()

    def _is_newest(self, error: CellError | None) -> bool:
        """Whether no error has come since the bundle of a stall was made."""
        return error is self._error

    def _report(self, error: CellError | None, line: str) -> None:
        """Keep what became of a bundle, unless there is a newer one."""
        with self._reporting:
            if self._is_newest(error):
                self._line = line

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


def _is_evident(error: CellError) -> bool:
    """Whether an error says something about the ranks, and not only about the cell's source."""
    if isinstance(error, CellTimeout):
        return True
    if not isinstance(error, RanksFailed):
        return False
    return any(map(_is_about_its_rank, error.errors.values()))


def _is_about_its_rank(error: RankError) -> bool:
    """Whether an error says more than that the source is wrong or the cell was stopped."""
    if error.name in _OF_THE_RANK:
        return error.message != STOPPED
    # an error that is only advice, such as that of input(), has no traceback
    text = COLOURS.sub("", error.traceback).strip()
    advice = text in {"", f"{error.name}: {error.message}".strip()}
    return error.name not in _OF_THE_SOURCE and not advice


def _reason(cell: int, error: CellError) -> str:
    if isinstance(error, CellTimeout):
        return f"Cell {cell} was not done in time on {phrase(error.unfinished)}."
    assert isinstance(error, RanksFailed)
    lost = [rank for rank, one in error.errors.items() if one.name == "RankLost"]
    if lost:
        return f"Cell {cell} failed: {phrase(lost, 'was lost', 'were lost')}."
    names = sorted({one.name for one in error.errors.values()})
    return f"Cell {cell} failed on {phrase(error.errors)}: {', '.join(names)}."
