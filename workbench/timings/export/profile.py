"""Export of all ranks' profiles, with their phases and collectives, as one trace for Perfetto.

In the trace, each rank is a process. It has a thread for each thread of the rank that PyTorch's
profiler has recorded.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from workbench.errors import UsageError
from workbench.timings.clocks import Times
from workbench.timings.export.alignment import align
from workbench.timings.export.events import open_trace
from workbench.timings.export.iterations import select_rows
from workbench.timings.export.perfetto import Trace, about
from workbench.timings.export.profiler_trace import ProfilerEvent, read_trace
from workbench.timings.source import TimingsSource
from workbench.timings.store import Rows, has_flag, profiled
from workbench.wire import Flag
from workbench.wire.profile_messages import ProfileEnded

_log = logging.getLogger(__name__)

_FIRST_THREAD = 1_000_000
_LANES = 1000
"""Threads of the trace that are reserved for one thread of a rank. Several are needed, because
asynchronous operations overlap."""
_ROUNDING_NS = 1000
_GPU_CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"}
NOTE = (
    "PyTorch: what torch.profiler has recorded, on the ranks' common clock; it slows iterations "
    "down, so their phases and collectives take longer than without it"
)


class RankProfile(NamedTuple):
    """A rank's report at the end of its profile, and its trace as gzip-compressed JSON."""

    rank: int
    ended: ProfileEnded
    data: bytes


@dataclass(frozen=True)
class ProfileClock:
    """Conversion of times of PyTorch's profiler to a rank's monotonic clock.

    Attributes
    ----------
    at_ns
        Two times of the profiler, near the start and the end of the profile.
    offset_ns
        The offsets of the rank's clock from the profiler's clock at these times.
    uncertainty_ns
        Maximum error of a converted time.

    Examples
    --------
    >>> clock = ProfileClock((0, 1_000), (50, 60), 5.0)
    >>> clock.to_rank(np.array([0, 500, 1_000])).tolist()
    [50, 555, 1060]
    """

    at_ns: tuple[int, int]
    offset_ns: tuple[int, int]
    uncertainty_ns: float

    @classmethod
    def of(cls, ended: ProfileEnded, marked_ns: list[int]) -> ProfileClock | None:
        """Return the clock of a profile from its slices `MARK`; None if it is unknown.

        Each slice began between two times on the rank's clock, which `ended` reports. The slice
        therefore gives a lower and an upper bound of the offset.

        Parameters
        ----------
        ended
            The rank's report.
        marked_ns
            Starts of the slices on the profiler's clock.
        """
        before, after = (np.array(ended.marks[first::2], dtype=np.int64) for first in (0, 1))
        times = np.array(sorted(marked_ns), dtype=np.int64)
        if not len(times) or len(times) != len(before) or len(before) != len(after):
            return None
        half = len(times) // 2
        halves = [
            (int(times[part][0]), *_bounds(before[part] - times[part], after[part] - times[part]))
            for part in (slice(0, half), slice(half, None))
        ]
        (first, *start_bounds), (last, *end_bounds) = halves
        uncertainty = max((high - low) / 2 for low, high in (start_bounds, end_bounds))
        middles = [(low + high) // 2 for low, high in (start_bounds, end_bounds)]
        return cls((first, last), (middles[0], middles[1]), uncertainty)

    def to_rank(self, t_ns: Times) -> Times:
        """Return times on the rank's clock."""
        first, last = self.at_ns
        start, end = self.offset_ns
        share = (t_ns - first) / max(1, last - first)
        return t_ns + start + np.rint(share * (end - start)).astype(np.int64)


def _bounds(low: Times, high: Times) -> tuple[int, int]:
    """Return the bounds of the offset that satisfy all slices.

    If a clock has been stepped during the profile, there are no such bounds. The result is then the
    range of all bounds.
    """
    lower = int(low.max())
    upper = int(high.min())
    return (lower, upper) if lower <= upper else (int(low.min()), int(high.max()))


def profiled_iterations(rows: Rows, profiles: list[RankProfile]) -> tuple[int, int]:
    """Return the numbers of the first and the last iteration during the profiles.

    Raises
    ------
    UsageError
        No records of these iterations have arrived.
    """
    numbers: set[int] = set()
    for rank, ended, _ in profiles:
        cell_rows = rows[(rows["rank"] == rank) & (rows["cell"] == ended.cell)]
        ends = cell_rows["start_ns"] + cell_rows["iteration_ns"]
        inside = (ends > ended.began_ns) & (cell_rows["start_ns"] < ended.ended_ns)
        numbers.update(cell_rows["iteration"][inside].tolist())
    if not numbers:
        raise UsageError(
            "The profile has no iteration: their records have not arrived. Profile again."
        )
    return min(numbers), max(numbers)


def write(run: TimingsSource, path: Path, profiles: list[RankProfile]) -> dict[int, float]:
    """Write the trace to a new file that only this user can read.

    Returns
    -------
    dict
        By rank, the uncertainty of its profiler's times on the common clock, in nanoseconds. It is
        infinite if these times are unknown; the trace then has no events of that profiler.

    Raises
    ------
    UsageError
        The file cannot be written, or no records of the profiles' iterations have arrived.
    """
    iterations = profiled_iterations(run.rows(), profiles)
    rows = select_rows(run, iterations)
    aligned = align(run, rows, None)
    facts = {**about(rows, aligned), "profile": NOTE}
    with open_trace(path, {"displayTimeUnit": "ms", "otherData": facts}, private=True) as events:
        trace = Trace(events, aligned, rows, run.records(-1, -1), partial=True)
        trace.write(run)
        uncertainties = {each.rank: _RankEvents(trace, each).write() for each in profiles}
    _log.info("profiles of %d ranks written, iterations %d to %d", len(profiles), *iterations)
    return uncertainties


class _RankEvents:
    """Writer of the events that one rank's profiler has recorded."""

    def __init__(self, trace: Trace, profile: RankProfile) -> None:
        self._trace = trace
        self._rank = profile.rank
        self._ended = profile.ended
        self._events, self._base_ns, self._marked = read_trace(profile.data)
        self._threads = 0
        cpu_pids = (event.pid for event in self._events if event.category not in _GPU_CATEGORIES)
        self._process = next(cpu_pids, None)
        """The process id of the rank. The events of GPUs have other numbers as process ids."""

    def write(self) -> float:
        """Write the events; return the uncertainty of their times, infinite without a clock."""
        clock = ProfileClock.of(self._ended, self._marked)
        if clock is None:
            return math.inf
        begins, durations = self._events.times_ns()
        begins, uncertainty = self._to_common(clock.to_rank(self._base_ns + begins))
        threads: dict[tuple[int, int], list[int]] = {}
        # The order puts callers before the functions that they call.
        for index in np.lexsort((-durations, begins)).tolist():
            event = self._events[index]
            threads.setdefault((event.pid, event.tid), []).append(index)
        for key in sorted(threads, key=self._sort_key):
            self._write_thread(key, threads[key], begins)
        return clock.uncertainty_ns + uncertainty

    def _to_common(self, t_ns: Times) -> tuple[Times, float]:
        """Return times on the common clock, and their largest uncertainty."""
        rank = np.full(len(t_ns), self._rank)
        cell = np.full(len(t_ns), self._ended.cell)
        times, uncertainty = self._trace.aligned.to_common(cell, rank, t_ns)
        return times, float(np.max(uncertainty, initial=0.0))

    def _sort_key(self, key: tuple[int, int]) -> tuple[bool, str, int]:
        """Sort the main thread first, then the other threads of the process, then GPUs."""
        pid, tid = key
        return pid != self._process, str(pid), 0 if pid == tid else tid

    def _write_thread(self, key: tuple[int, int], indices: list[int], begins: Times) -> None:
        """Write the events of a thread, which are in order."""
        pid, tid = key
        first = _FIRST_THREAD + _LANES * self._threads
        self._threads += 1
        name = "main thread" if pid == tid else f"thread {tid}"
        if pid != self._process:
            name = f"GPU {pid} stream {tid}"
        lane_by_begin: dict[int, int] = {}
        last_named = -1
        for lane, begin, duration, event in _assign_lanes(self._select(indices, begins)):
            if lane > last_named:
                last_named = lane
                more = "" if lane == 0 else f" ({lane + 1})"
                self._trace.name_thread(self._rank, f"PyTorch: {name}{more}", first + lane)
            self._trace.add_slice(
                event.name, event.category, self._rank, first + lane, begin, duration,
                json.loads(event.args),
            )  # fmt: skip
            lane_by_begin.setdefault(begin, lane)
        for begin, event in self._select(indices, begins):
            # An arrow ends at the start of its slice.
            if event.phase != "X" and begin in lane_by_begin:
                self._trace.add_flow(event, self._rank, first + lane_by_begin[begin], begin)

    def _select(self, indices: list[int], begins: Times) -> Iterator[tuple[int, ProfilerEvent]]:
        """Yield the events at these indices, each with its start on the common clock."""
        return ((begins[index].item(), self._events[index]) for index in indices)


def _assign_lanes(
    events: Iterator[tuple[int, ProfilerEvent]],
) -> Iterator[tuple[int, int, int, ProfilerEvent]]:
    """Assign slices to lanes, so that the slices of a lane are nested or do not overlap.

    Yield the lane, the start and the duration in nanoseconds, and the event. Because of rounding,
    an operator may seem to end after its caller; it is then shortened.
    """
    lanes: list[list[int]] = []
    for begin, event in events:
        if event.phase != "X":
            continue
        for ends in lanes:
            while ends and ends[-1] <= begin:
                ends.pop()
        latest = begin + event.took_ns - _ROUNDING_NS
        fitting = (lane for lane, ends in enumerate(lanes) if not ends or latest <= ends[-1])
        lane = next(fitting, len(lanes))
        if lane == len(lanes):
            lanes.append([])
        ends = lanes[lane]
        end = min(begin + event.took_ns, ends[-1]) if ends else begin + event.took_ns
        ends.append(end)
        yield lane, begin, end - begin, event


def durations_us(rows: Rows, profiles: list[RankProfile]) -> tuple[float, float]:
    """Return the median durations of the cell's iterations with and without a profile.

    An iteration has a profile if its middle is within the profile, because the profiler starts and
    stops in the course of an iteration. The iterations without a profile exclude the cell's first
    iteration, and iterations that another profile, or the writing of its trace, has slowed down.
    Without such iterations, a median is NaN.
    """
    cell = rows["cell"] == profiles[0].ended.cell
    inside = np.zeros(len(rows), dtype=bool)
    for rank, ended, _ in profiles:
        middle = rows["start_ns"] + rows["iteration_ns"] // 2
        within = (middle > ended.began_ns) & (middle < ended.ended_ns)
        inside |= cell & (rows["rank"] == rank) & within
    left_out = profiled(rows) | np.isin(rows["iteration"], rows["iteration"][inside])
    left_out |= has_flag(rows, Flag.FIRST_OF_CELL)
    medians = []
    for chosen in (inside, cell & ~left_out):
        times = rows["iteration_ns"][chosen] / 1e3
        medians.append(float(np.median(times)) if len(times) else math.nan)
    return medians[0], medians[1]
