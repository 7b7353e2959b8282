"""Profile the training of the ranks with PyTorch's profiler, and write one common trace."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from workbench.cluster.threads import in_background
from workbench.cluster.transfer import Transfer, new_number
from workbench.errors import UsageError, WorkbenchError
from workbench.ranks import grouped, phrase
from workbench.safefiles import format_bytes
from workbench.wire.profile_messages import ProfileEnded, ProfileRequest, ProfileStarted
from workbench.wire.transfer_messages import DropTransfer

if TYPE_CHECKING:
    from workbench.cluster.processes import ClusterProcesses
    from workbench.cluster.state import ClusterState
    from workbench.timings.export.profile import RankProfile

_log = logging.getLogger(__name__)

MAX_S = 60.0
"""Maximum duration of a profile."""
_GRACE_S = 60.0
"""After the end of a profile, time limit for its last iteration and its traces."""
_AFTER_CELL_S = 60.0
"""After the end of the cell, time limit for its trace."""
_RECORDS_S = 10.0
_TIMEOUT_S = 30.0
_POLL_S = 0.1

ProfileState = Literal["none", "waiting", "profiling", "done", "failed"]


@dataclass(frozen=True)
class Profile:
    """A profile of all ranks, as a trace for Perfetto.

    Attributes
    ----------
    path
        The file of the trace, which only this user can read.
    ranks
        The ranks with operators in the trace.
    first_iteration, last_iteration
        The first and the last iteration in the trace, as numbered in the timings.
    seconds
        The profiled time of a rank, on average.
    size_bytes
        The size of the file.
    uncertainty_us
        The greatest error of the operators' times on the ranks' common clock.
    profiled_us, usual_us
        Median duration of the cell's profiled iterations, and of its other iterations without the
        first; NaN if there are none.
    notes
        Unusual facts, a sentence each.

    Examples
    --------
    >>> from pathlib import PurePosixPath
    >>> profile = Profile(PurePosixPath("trace.json"), (0, 1), 20, 29, 1.2, 5 << 20, 3.5,
    ...     120e3, 100e3, ())
    >>> profile.cost
    'Iterations took 120.0 ms with the profiler, 100.0 ms without (+20 %).'
    """

    path: Path
    ranks: tuple[int, ...]
    first_iteration: int
    last_iteration: int
    seconds: float
    size_bytes: int
    uncertainty_us: float
    profiled_us: float
    usual_us: float
    notes: tuple[str, ...]

    @property
    def cost(self) -> str:
        """A sentence that says how much the profiler has slowed iterations down."""
        if math.isnan(self.profiled_us):
            return "How much the profiler slows iterations down is unknown: too few were profiled."
        ms = f"{self.profiled_us / 1e3:.1f} ms"
        if math.isnan(self.usual_us):
            return f"Iterations took {ms} with the profiler; there are no others to compare with."
        more = (self.profiled_us / self.usual_us - 1) * 100
        usual = f"{self.usual_us / 1e3:.1f} ms"
        return f"Iterations took {ms} with the profiler, {usual} without ({more:+.0f} %)."

    def __repr__(self) -> str:
        iterations = f"iterations {self.first_iteration:,} to {self.last_iteration:,}"
        size = f"{self.seconds:.1f} s, {format_bytes(self.size_bytes)}"
        lines = [
            f"Profile of {phrase(self.ranks)}: {iterations}, {size}.",
            str(self.path),
            "Open the file in https://ui.perfetto.dev, which reads it in the browser.",
            f"All ranks are on one clock, within {self.uncertainty_us:.1f} µs.",
            self.cost,
            *self.notes,
        ]
        return "\n".join(lines)


@dataclass
class _Request:
    """A requested profile, and the reports of its ranks."""

    message: ProfileRequest
    ranks: frozenset[int]
    processes: ClusterProcesses
    future: Future[Profile] = field(default_factory=Future)
    started: dict[int, int] = field(default_factory=dict)
    """Number of the profiled cell, by rank."""
    ended: dict[int, ProfileEnded] = field(default_factory=dict)
    collects: bool = False


class Profiling:
    """The profiles of a cluster, one at a time; methods may be called from any thread.

    Parameters
    ----------
    busy
        Returns the ranks of the running cell.
    """

    def __init__(self, state: ClusterState, busy: Callable[[], tuple[int, ...]]) -> None:
        self._state = state
        self._busy = busy
        self._changed = threading.Condition()
        self._request: _Request | None = None

    @property
    def state(self) -> ProfileState:
        """Return the progress of the latest profile; ``"none"`` if none was requested."""
        request = self._request
        if request is None:
            return "none"
        try:
            if request.future.done():
                return "failed" if request.future.exception() else "done"
        except CancelledError:  # another thread has replaced the request since it was read
            return "none"
        if request.started or request.ended:
            return "profiling"
        return "none" if self._is_gone(request) else "waiting"

    @property
    def latest(self) -> Profile | str | None:
        """Return the latest profile, or why it failed; None if there is no result yet."""
        request = self._request
        if request is None or not request.future.done():
            return None
        try:
            error = request.future.exception()
        except CancelledError:
            return None
        return request.future.result() if error is None else str(error)

    def request(self, seconds: float, iterations: int) -> Future[Profile]:
        """Profile the ranks of the running cell, or the next cell; see `Cluster.profile`."""
        processes = self._state.usable()
        timings = self._state.timings
        running = self._busy()
        _check(seconds, iterations)
        if not (timings.running if running else timings.recording):
            raise UsageError(
                f"Cannot profile {'the running' if running else 'the next'} cell: it is not "
                "recorded. Switch recording on with %timings on before it."
            )
        with self._changed:
            if self.state == "profiling":
                raise UsageError("Cannot profile: another profile runs. Wait until it has ended.")
            message = ProfileRequest(new_number(), seconds, iterations)
            ranks = frozenset(running or range(self._state.n))
            earlier = self._request
            request = _Request(message, ranks, processes)
            # the request is replaced before it is cancelled, so that `state` sees no cancelled one
            self._request = request
            if earlier is not None:
                earlier.future.cancel()
            processes.receive_profile = self._receive
        for rank in ranks:
            processes.engines.send(rank, message)
        _log.info("profiling ranks %s for %g s", sorted(ranks), seconds)
        return request.future

    def _is_gone(self, request: _Request) -> bool:
        """Return whether the ranks of a request no longer run."""
        return self._state.state in {"stopping", "stopped"} or (
            self._state.processes is not request.processes
        )

    def _receive(self, rank: int, message: ProfileStarted | ProfileEnded) -> None:
        """Handle a report of a rank, in the control channel's thread."""
        with self._changed:
            request = self._request
            if request is None or message.profile != request.message.profile:
                return
            if request.future.cancelled():  # its caller no longer waits
                return
            if isinstance(message, ProfileStarted):
                request.started[rank] = message.cell
            else:
                request.ended[rank] = message
            begins = not request.collects
            request.collects = True
            self._changed.notify_all()
            if begins:
                # the lock is held, so that `request` cancels a profile before it begins, or never
                in_background(partial(self._collect, request), request.future)

    def _collect(self, request: _Request) -> Profile:
        """Wait for all ranks, fetch their traces, and write one common trace."""
        try:
            ended = self._wait(request)
            notes = {rank: end.note for rank, end in ended.items() if end.note}
            notes |= _missing_report_reasons(request, ended)
            profiles = [
                profile
                for rank in sorted(ended)
                for profile in self._fetch(request, rank, ended[rank], notes)
            ]
            remarks = tuple(f"{phrase(ranks)}: {text}" for text, ranks in grouped(notes))
            if not profiles:
                raise UsageError(f"Nothing was profiled. {' '.join(remarks)} Profile again.")
            return self._write(profiles, remarks)
        finally:
            for rank in request.ranks:
                request.processes.engines.send(rank, DropTransfer(request.message.profile))

    def _wait(self, request: _Request) -> dict[int, ProfileEnded]:
        """Wait until all ranks have ended the profile, or cannot; return the reports, by rank.

        Reports that the control channel's thread receives later are not used.
        """
        until = time.monotonic() + request.message.seconds + _GRACE_S
        is_running = True
        while pending := request.ranks - request.ended.keys():
            lost = request.processes.engines.members.lost()
            if is_running and not self._busy():
                is_running = False
                until = min(until, time.monotonic() + _AFTER_CELL_S)
            if pending <= lost.keys() or time.monotonic() > until or self._is_gone(request):
                break
            if not is_running and not pending & request.started.keys():
                break  # these ranks have not run the cell, or no iteration of it
            with self._changed:
                self._changed.wait(_POLL_S)
        with self._changed:
            return dict(request.ended)

    def _fetch(
        self, request: _Request, rank: int, ended: ProfileEnded, notes: dict[int, str]
    ) -> list[RankProfile]:
        """Return the profile of a rank in a list; after a failure, add a note, and return []."""
        from workbench.timings.export.profile import RankProfile

        if not ended.size_bytes:
            return []
        lost = request.processes.engines.members.lost
        transfer = Transfer(
            request.processes, (rank,), lost, "profile", _TIMEOUT_S, lambda _: None,
            ended.profile,
        )  # fmt: skip
        try:
            data = transfer.fetch({rank: ended.size_bytes})[rank]
        except WorkbenchError as error:
            _log.info("the trace of rank %d did not arrive: %s", rank, type(error).__name__)
            notes[rank] = f"{notes.get(rank, '')} Its trace did not arrive ({error})".strip()
            return []
        return [RankProfile(rank, ended, data)]

    def _write(self, profiles: list[RankProfile], notes: tuple[str, ...]) -> Profile:
        from workbench.timings.export import profile as export
        from workbench.timings.folder import new_profile

        timings = self._state.timings
        if timings.path is None:
            raise UsageError("The profile has no folder: the run is not stored. Free disk space.")
        self._wait_for_records(profiles, timings.path)
        try:
            path = new_profile(timings.path)
        except OSError as error:
            raise UsageError(f"{timings.path}: {error.strerror}. Check this folder.") from error
        clock_uncertainties_ns = export.write(timings, path, profiles)
        rows = timings.rows()
        first, last = export.profiled_iterations(rows, profiles)
        profiled_us, usual_us = export.durations_us(rows, profiles)
        unknown = [
            rank for rank, error_ns in clock_uncertainties_ns.items() if math.isinf(error_ns)
        ]
        if unknown:
            text = "the operators are not in the trace, because the clock is unknown."
            notes = (*notes, f"{phrase(unknown)}: {text}")
        written_ns = {
            rank: error_ns
            for rank, error_ns in clock_uncertainties_ns.items()
            if rank not in unknown
        }
        durations_ns = [profile.ended.ended_ns - profile.ended.began_ns for profile in profiles]
        _log.info("wrote a profile of ranks %s", sorted(written_ns))
        return Profile(
            path=path,
            ranks=tuple(written_ns),
            first_iteration=first,
            last_iteration=last,
            seconds=sum(durations_ns) / len(durations_ns) / 1e9,
            size_bytes=path.stat().st_size,
            uncertainty_us=max(written_ns.values(), default=math.nan) / 1e3,
            profiled_us=profiled_us,
            usual_us=usual_us,
            notes=notes,
        )

    def _wait_for_records(self, profiles: list[RankProfile], path: Path) -> None:
        """Wait until the records of the profiled iterations have arrived in the run at `path`."""
        until = time.monotonic() + _RECORDS_S
        while time.monotonic() < until:
            first = self._state.timings.first_of_cell(profiles[0].ended.cell)
            last = {profile.rank: (first or 0) + profile.ended.last for profile in profiles}
            rows = self._state.timings.between(min(last.values()), max(last.values()))
            arrived = first is not None and all(
                ((rows["rank"] == rank) & (rows["iteration"] == iteration)).any()
                for rank, iteration in last.items()
            )
            if arrived and path.is_dir():  # the folder is created with the first records
                return
            time.sleep(_POLL_S)


def _missing_report_reasons(request: _Request, ended: Mapping[int, ProfileEnded]) -> dict[int, str]:
    """Return why ranks have not ended the profile, by rank; `ended` has the others' reports."""
    lost = request.processes.engines.members.lost()
    return {
        rank: f"It was lost ({lost[rank]})."
        if rank in lost
        else "It has reported no end of the profile."
        if rank in request.started
        else "It has ended no iteration in this time."
        for rank in request.ranks - ended.keys()
    }


def _check(seconds: float, iterations: int) -> None:
    if not 0 < seconds <= MAX_S:
        raise UsageError(
            f"profile {seconds:g} s: not possible, as a profile lasts at most {MAX_S:g} s. Give "
            "less, such as 5s."
        )
    if iterations < 0:
        raise UsageError(f"iterations={iterations}: not a positive integer. Give one, such as 20.")
