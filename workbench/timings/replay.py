"""Timings of a recorded run that arrive again, at the pace of a clock."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left

import numpy as np
import numpy.typing as npt

from workbench.errors import UsageError
from workbench.timings.logged import Logged
from workbench.timings.run import Run
from workbench.timings.samples import interval_s
from workbench.timings.store import CollectiveRecord, Rows
from workbench.timings.timings import Timings

Floats = npt.NDArray[np.float64]

FASTEST = 100.0
"""Highest speed."""


def checked_speed(speed: float) -> float:
    """Return a speed; raise `UsageError` if it is not more than 0 and at most `FASTEST`."""
    if not 0 < speed <= FASTEST:
        raise UsageError(f"--speed {speed:g}: out of range. Give more than 0, up to {FASTEST:g}.")
    return speed


class ReplayClock:
    """The position in a recording: seconds since its start, which advance at a speed; thread-safe.

    Parameters
    ----------
    length_s
        The length of the recording.
    """

    def __init__(self, length_s: float) -> None:
        self.length_s = length_s
        self._lock = threading.RLock()
        self._position_s = 0.0
        self._speed = 1.0
        self._since: float | None = None

    @property
    def position_s(self) -> float:
        """The current position, 0 to `length_s`."""
        with self._lock:
            passed = 0.0 if self._since is None else time.monotonic() - self._since
            return min(self.length_s, self._position_s + passed * self._speed)

    @property
    def speed(self) -> float:
        """How many seconds of the recording pass in one second."""
        return self._speed

    @speed.setter
    def speed(self, speed: float) -> None:
        with self._lock:
            self.seek(self.position_s)
            self._speed = speed

    @property
    def playing(self) -> bool:
        """Whether the position advances."""
        return self._since is not None and self.position_s < self.length_s

    def play(self) -> None:
        """Advance, from the start if the end was reached."""
        with self._lock:
            self._position_s = 0.0 if self.position_s >= self.length_s else self.position_s
            self._since = time.monotonic()

    def pause(self) -> None:
        """Keep the position."""
        with self._lock:
            self._position_s, self._since = self.position_s, None

    def seek(self, position_s: float) -> None:
        """Go to a position, and go on as before."""
        with self._lock:
            self._position_s = min(max(0.0, position_s), self.length_s)
            if self._since is not None:
                self._since = time.monotonic()


class Recording:
    """A run's rows, records, logged values and samples, each with its time of day.

    Attributes
    ----------
    begin_s, end_s
        The time of day of its first and last iteration or sample.
    row_times_s
        When each row's iteration ended; rows are in this order.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.samples = run.recorded_samples()
        rows = run.rows()
        times_s = self._times_s(rows)
        order = np.argsort(times_s, kind="stable")
        self.rows, self.row_times_s = rows[order], times_s[order]
        keys = zip(self.rows["iteration"].tolist(), self.rows["rank"].tolist(), strict=True)
        arrived = dict(zip(keys, self.row_times_s.tolist(), strict=True))
        records = [(arrived.get((one.iteration, one.rank)), one) for one in run.records()]
        timed = sorted(
            ((at, place, one) for place, (at, one) in enumerate(records) if at is not None),
            key=lambda found: found[:2],
        )
        self.records = [one for _, _, one in timed]
        self.record_times_s = np.array([at for at, _, _ in timed])
        logged = run.logged()
        keys = zip(logged.values["iteration"].tolist(), logged.values["rank"].tolist(), strict=True)
        times_s = np.array([arrived.get(key, np.inf) for key in keys], np.float64)
        order = np.argsort(times_s, kind="stable")
        self.logged = Logged(logged.names, logged.values[order])
        self.logged_times_s = times_s[order]
        self._sample_times_s = sorted({one.time_s for one in self.samples})
        found = [*self.row_times_s[[0, -1]].tolist()] if len(rows) else []
        found += [one.time_s for one in self.samples]
        self.begin_s, self.end_s = min(found, default=0.0), max(found, default=0.0)

    def sample_interval_s(self, time_s: float) -> float:
        """Return the interval between the samples that were stored about a time of day."""
        return interval_s(bisect_left(self._sample_times_s, time_s))

    def _times_s(self, rows: Rows) -> Floats:
        """Return the time of day at which each row's iteration ended."""
        if not len(rows):
            return np.empty(0)
        aligned = np.isfinite(rows["uncertainty_ns"])
        ends_s = _ends_s(rows, aligned)
        clock = self.run.facts.get("clock")
        if clock is None or not aligned.any():  # the first iteration was written within a second
            begin_s = float(self.run.facts.get("started_s", 0.0))
            return np.asarray(ends_s - ends_s.min() + begin_s, np.float64)
        return np.asarray(ends_s + (clock["time_s"] - clock["perf_ns"] / 1e9), np.float64)


def _ends_s(rows: Rows, aligned: npt.NDArray[np.bool_]) -> Floats:
    """Return when iterations ended on the kernel's clock, in seconds.

    A rank whose clock is unknown ends its first iteration together with the reference: the first
    rank whose clock is known, or else the first rank.
    """
    ends_ns = rows["start_ns"].astype(np.int64) + rows["offset_ns"] + rows["iteration_ns"]
    ends_s = np.asarray(ends_ns / 1e9, np.float64)
    known = set(rows["rank"][aligned].tolist())
    ranks = sorted(set(rows["rank"].tolist()), key=lambda rank: (rank not in known, rank))
    reference = rows["rank"] == ranks[0]
    for rank in ranks[1:]:
        own = rows["rank"] == rank
        if rank not in known:
            first = rows["iteration"][own].min()
            there = reference & (rows["iteration"] >= first)
            meets = ends_s[there if there.any() else reference].min()
            ends_s[own] += meets - ends_s[own].min()
    return ends_s


class ReplayTimings(Timings):
    """The timings of a recording up to the time of day that `advance` was called with."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording
        self._rows = self._records = self._logged = 0
        self.vms = recording.run.vm_names()

    def advance(self, time_s: float, *, playing: bool) -> None:
        """Add what was recorded up to a time of day, and note whether more follows."""
        one = self._recording
        rows = int(np.searchsorted(one.row_times_s, time_s, side="right"))
        records = int(np.searchsorted(one.record_times_s, time_s, side="right"))
        news: list[CollectiveRecord] = one.records[self._records : records]
        logged = int(np.searchsorted(one.logged_times_s, time_s, side="right"))
        if logged > self._logged:  # before the rows, which the view reads together with them
            names, values = one.logged
            self._store.logged.restore(Logged(names, values[self._logged : logged]))
            self._logged = logged
        if rows > self._rows:
            self._store.extend(one.rows[self._rows : rows], news)
            self._rows, self._records = rows, records
        running = {self.newest_cell} if playing and rows < len(one.rows) else set()
        changed, self._running = running != self._running, running
        if changed or news:
            self._notify()

    def known_clocks(self) -> None:  # type: ignore[override]  # the rows have their offsets
        """Return None: the rows of a recording are aligned already."""

    def _align(self, rows: Rows) -> Rows:
        return rows
