"""The profiles of all ranks, with our phases and collectives, as one trace for Perfetto.

Each rank is a process; what PyTorch's profiler has recorded in one of its threads is a thread.
"""

from __future__ import annotations

import json
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

_FIRST_THREAD = 1_000_000
_LANES = 1000
"""Threads of the trace for one thread of a rank: asynchronous operations overlap."""
_ROUNDING_NS = 1000
_GPU = {"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"}
NOTE = (
    "PyTorch: what torch.profiler has recorded, on the ranks' common clock; it slows iterations "
    "down, so their phases and collectives take longer than without it"
)


class RankProfile(NamedTuple):
    """What a rank has reported of its profile, and its trace as gzip-compressed JSON."""

    rank: int
    ended: ProfileEnded
    data: bytes


@dataclass(frozen=True)
class ProfileClock:
    """Converts nanoseconds of PyTorch's profiler to a rank's monotonic clock.

    Attributes
    ----------
    at_ns
        Two times of the profiler, near the begin and the end of the profile.
    offset_ns
        What must be added to each of them.
    uncertainty_ns
        The greatest error.
    """

    at_ns: tuple[int, int]
    offset_ns: tuple[int, int]
    uncertainty_ns: float

    @classmethod
    def of(cls, ended: ProfileEnded, marked_ns: list[int]) -> ProfileClock | None:
        """Return the clock of a profile whose slices `MARK` begin at these times, if it is known.

        Each slice began between two known times, so it bounds the offset on both sides.
        """
        before, after = (np.array(ended.marks[first::2], dtype=np.int64) for first in (0, 1))
        times = np.array(sorted(marked_ns), dtype=np.int64)
        if not len(times) or len(times) != len(before) or len(before) != len(after):
            return None
        half = len(times) // 2
        found = [
            (int(times[part][0]), *_bounds(before[part] - times[part], after[part] - times[part]))
            for part in (slice(0, half), slice(half, None))
        ]
        (first, *start), (last, *end) = found
        off = max((high - low) / 2 for low, high in (start, end))
        middles = [(low + high) // 2 for low, high in (start, end)]
        return cls((first, last), (middles[0], middles[1]), off)

    def to_rank(self, t_ns: Times) -> Times:
        """Return times on the rank's clock."""
        (first, last), (start, end) = self.at_ns, self.offset_ns
        share = (t_ns - first) / max(1, last - first)
        return t_ns + start + np.rint(share * (end - start)).astype(np.int64)


def _bounds(low: Times, high: Times) -> tuple[int, int]:
    """Return the bounds on which all agree; if a clock has stepped meanwhile, all of them."""
    least, most = int(low.max()), int(high.min())
    return (least, most) if least <= most else (int(low.min()), int(high.max()))


def profiled_iterations(rows: Rows, profiles: list[RankProfile]) -> tuple[int, int]:
    """Return the first and the last iteration during the profiles.

    Raise `UsageError` if none of them has arrived.
    """
    numbers: set[int] = set()
    for rank, ended, _ in profiles:
        own = rows[(rows["rank"] == rank) & (rows["cell"] == ended.cell)]
        ends = own["start_ns"] + own["iteration_ns"]
        inside = (ends > ended.began_ns) & (own["start_ns"] < ended.ended_ns)
        numbers.update(own["iteration"][inside].tolist())
    if not numbers:
        raise UsageError(
            "The profile has no iteration: their records have not arrived. Profile again."
        )
    return min(numbers), max(numbers)


def write(run: TimingsSource, path: Path, profiles: list[RankProfile]) -> dict[int, float]:
    """Write the trace to a new file that only this user can read.

    Return, by rank, the uncertainty of its profiler's times on the common clock in nanoseconds;
    infinite where they are not known, and the trace has none.

    Raises
    ------
    UsageError
        The file cannot be written, or no iteration of the profiles has arrived.
    """
    iterations = profiled_iterations(run.rows(), profiles)
    rows = select_rows(run, iterations)
    aligned = align(run, rows, None)
    facts = {**about(rows, aligned), "profile": NOTE}
    with open_trace(path, {"displayTimeUnit": "ms", "otherData": facts}, private=True) as events:
        trace = Trace(events, aligned, rows, run.records(-1, -1), partial=True)
        trace.write(run)
        return {one.rank: _RankEvents(trace, one).write() for one in profiles}


class _RankEvents:
    """Writes what one rank's profiler has recorded."""

    def __init__(self, trace: Trace, profile: RankProfile) -> None:
        self._trace = trace
        self._rank, self._ended = profile.rank, profile.ended
        self._events, self._base_ns, self._marked = read_trace(profile.data)
        self._threads = 0
        own = (one.pid for one in self._events if one.category not in _GPU)
        self._process = next(own, None)
        """The rank's process id, in which its operators run; GPUs have numbers of their own."""

    def write(self) -> float:
        """Write the events; return the uncertainty of their times, infinite without a clock."""
        clock = ProfileClock.of(self._ended, self._marked)
        if clock is None:
            return math.inf
        begins, took = self._events.times_ns()
        begins, off = self._common(clock.to_rank(self._base_ns + begins))
        threads: dict[tuple[int, int], list[int]] = {}
        for place in np.lexsort((-took, begins)).tolist():  # callers before what they call
            one = self._events[place]
            threads.setdefault((one.pid, one.tid), []).append(place)
        for key in sorted(threads, key=self._order):
            self._thread(key, threads[key], begins)
        return clock.uncertainty_ns + off

    def _common(self, t_ns: Times) -> tuple[Times, float]:
        """Return times on the common clock, and their greatest uncertainty."""
        rank = np.full(len(t_ns), self._rank)
        cell = np.full(len(t_ns), self._ended.cell)
        times, off = self._trace.aligned.to_common(cell, rank, t_ns)
        return times, float(np.max(off, initial=0.0))

    def _order(self, key: tuple[int, int]) -> tuple[bool, str, int]:
        """Order threads: the main thread first, then the others of the process, then GPUs."""
        pid, tid = key
        return pid != self._process, str(pid), 0 if pid == tid else tid

    def _thread(self, key: tuple[int, int], places: list[int], begins: Times) -> None:
        """Write the events of a thread, which are in order."""
        pid, tid = key
        first = _FIRST_THREAD + _LANES * self._threads
        self._threads += 1
        name = "main thread" if pid == tid else f"thread {tid}"
        if pid != self._process:
            name = f"GPU {pid} stream {tid}"
        lane_at: dict[int, int] = {}
        used = -1
        for lane, begin, took, one in _lanes(self._at(places, begins)):
            if lane > used:
                used = lane
                more = "" if lane == 0 else f" ({lane + 1})"
                self._trace.name_thread(self._rank, f"PyTorch: {name}{more}", first + lane)
            self._trace.add_slice(
                one.name, one.category, self._rank, first + lane, begin, took,
                json.loads(one.args),
            )  # fmt: skip
            lane_at.setdefault(begin, lane)
        for begin, one in self._at(places, begins):
            # the end of an arrow is at the begin of its slice
            if one.phase != "X" and begin in lane_at:
                self._trace.add_flow(one, self._rank, first + lane_at[begin], begin)

    def _at(self, places: list[int], begins: Times) -> Iterator[tuple[int, ProfilerEvent]]:
        """Yield the events at some places, each with its begin on the common clock."""
        return ((begins[place].item(), self._events[place]) for place in places)


def _lanes(
    events: Iterator[tuple[int, ProfilerEvent]],
) -> Iterator[tuple[int, int, int, ProfilerEvent]]:
    """Yield the slices of events with a lane each, so that those of one lane are nested or apart.

    Yields the lane, the begin and the duration in nanoseconds, and the event. An operator may end
    in its caller's last nanoseconds, after rounding even later: it is cut.
    """
    lanes: list[list[int]] = []
    for begin, one in events:
        if one.phase != "X":
            continue
        for ends in lanes:
            while ends and ends[-1] <= begin:
                ends.pop()
        latest = begin + one.took_ns - _ROUNDING_NS
        fit = (at for at, ends in enumerate(lanes) if not ends or latest <= ends[-1])
        lane = next(fit, len(lanes))
        if lane == len(lanes):
            lanes.append([])
        ends = lanes[lane]
        end = min(begin + one.took_ns, ends[-1]) if ends else begin + one.took_ns
        ends.append(end)
        yield lane, begin, end - begin, one


def durations_us(rows: Rows, profiles: list[RankProfile]) -> tuple[float, float]:
    """Return the median duration of the iterations in the profiles, and of the cell's others.

    An iteration is in a profile if its middle is: the first and the one after the last are partly
    the start and the stop of the profiler. Not among the others are the cell's first iteration,
    and those that another profile, or the writing of its trace, has slowed down.

    NaN where there are none.
    """
    cell = rows["cell"] == profiles[0].ended.cell
    inside = np.zeros(len(rows), dtype=bool)
    for rank, ended, _ in profiles:
        middle = rows["start_ns"] + rows["iteration_ns"] // 2
        within = (middle > ended.began_ns) & (middle < ended.ended_ns)
        inside |= cell & (rows["rank"] == rank) & within
    left_out = profiled(rows) | np.isin(rows["iteration"], rows["iteration"][inside])
    left_out |= has_flag(rows, Flag.FIRST_OF_CELL)
    found = []
    for chosen in (inside, cell & ~left_out):
        times = rows["iteration_ns"][chosen] / 1e3
        found.append(float(np.median(times)) if len(times) else math.nan)
    return found[0], found[1]
