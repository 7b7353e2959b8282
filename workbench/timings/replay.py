"""Timings of a recorded run that are replayed at the speed of a clock."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left

import numpy as np
import numpy.typing as npt

from workbench.errors import UsageError
from workbench.timings.logged import LoggedTable
from workbench.timings.run import Run
from workbench.timings.samples import interval_s
from workbench.timings.store import CollectiveRecord, Rows
from workbench.timings.timings import Timings

Floats = npt.NDArray[np.float64]

MAX_SPEED = 100.0
"""Maximum speed of a replay."""


def checked_speed(speed: float) -> float:
    """Return a speed, or raise `UsageError` unless it is more than 0 and at most `MAX_SPEED`.

    Examples
    --------
    >>> checked_speed(2.0)
    2.0
    >>> checked_speed(0.0)
    Traceback (most recent call last):
    workbench.errors.UsageError: --speed 0: out of range. Give more than 0, up to 100.
    """
    if not 0 < speed <= MAX_SPEED:
        raise UsageError(f"--speed {speed:g}: out of range. Give more than 0, up to {MAX_SPEED:g}.")
    return speed


class ReplayClock:
    """The position in a recording, in seconds since its start; thread-safe.

    While the clock plays, the position advances at `speed`.

    Parameters
    ----------
    length_s
        The length of the recording.

    Examples
    --------
    >>> clock = ReplayClock(60.0)
    >>> clock.seek(75.0)
    >>> clock.position_s
    60.0
    >>> clock.playing
    False
    """

    def __init__(self, length_s: float) -> None:
        self.length_s = length_s
        self._lock = threading.RLock()
        self._position_s = 0.0
        self._speed = 1.0
        self._since: float | None = None

    @property
    def position_s(self) -> float:
        """The current position, from 0 to `length_s`."""
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
        """Start to advance; begin at the start if the end was reached."""
        with self._lock:
            self._position_s = 0.0 if self.position_s >= self.length_s else self.position_s
            self._since = time.monotonic()

    def pause(self) -> None:
        """Stop at the current position."""
        with self._lock:
            # read before `_since` is cleared, because the position depends on it
            self._position_s = self.position_s
            self._since = None

    def seek(self, position_s: float) -> None:
        """Move to a position, and continue to play or pause as before."""
        with self._lock:
            self._position_s = min(max(0.0, position_s), self.length_s)
            if self._since is not None:
                self._since = time.monotonic()


class Recording:
    """A run's rows, records, logged values and samples, each with a time of day.

    Times of day are in seconds since the epoch.

    Attributes
    ----------
    begin_s, end_s
        The time of day of the first and the last iteration or sample.
    row_times_s
        The time of day when each row's iteration ended; the rows are sorted by this time.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.samples = run.recorded_samples()
        rows = run.rows()
        times_s = self._times_s(rows)
        order = np.argsort(times_s, kind="stable")
        self.rows = rows[order]
        self.row_times_s = times_s[order]
        keys = zip(self.rows["iteration"].tolist(), self.rows["rank"].tolist(), strict=True)
        row_time_s = dict(zip(keys, self.row_times_s.tolist(), strict=True))
        timed = [
            (row_time_s[record.iteration, record.rank], record)
            for record in run.records()
            if (record.iteration, record.rank) in row_time_s
        ]
        timed.sort(key=lambda pair: pair[0])  # stable: records of one time keep their order
        self.records = [record for _, record in timed]
        self.record_times_s = np.array([time_s for time_s, _ in timed])
        logged = run.logged()
        keys = zip(logged.values["iteration"].tolist(), logged.values["rank"].tolist(), strict=True)
        times_s = np.array([row_time_s.get(key, np.inf) for key in keys], np.float64)
        order = np.argsort(times_s, kind="stable")
        self.logged = LoggedTable(logged.names, logged.values[order])
        self.logged_times_s = times_s[order]
        self._sample_times_s = sorted({sample.time_s for sample in self.samples})
        limits_s = [*self.row_times_s[[0, -1]].tolist()] if len(rows) else []
        limits_s += [sample.time_s for sample in self.samples]
        self.begin_s = min(limits_s, default=0.0)
        self.end_s = max(limits_s, default=0.0)

    def sample_interval_s(self, time_s: float) -> float:
        """Return the interval in seconds between samples that were stored around a time of day."""
        return interval_s(bisect_left(self._sample_times_s, time_s))

    def _times_s(self, rows: Rows) -> Floats:
        """Return the time of day at which each row's iteration ended."""
        if not len(rows):
            return np.empty(0)
        aligned = np.isfinite(rows["uncertainty_ns"])
        ends_s = _ends_s(rows, aligned)
        clock = self.run.facts.get("clock")
        # without aligned clocks: the first iteration was written within a second after it ended
        if clock is None or not aligned.any():
            begin_s = float(self.run.facts.get("started_s", 0.0))
            return np.asarray(ends_s - ends_s.min() + begin_s, np.float64)
        return np.asarray(ends_s + (clock["time_s"] - clock["perf_ns"] / 1e9), np.float64)


def _ends_s(rows: Rows, aligned: npt.NDArray[np.bool_]) -> Floats:
    """Return when iterations ended on the kernel's clock, in seconds.

    If the clock of a rank is unknown, its first iteration is assumed to end together with the same
    iteration of a reference rank: the first rank with a known clock, or else the first rank.
    """
    ends_ns = rows["start_ns"].astype(np.int64) + rows["offset_ns"] + rows["iteration_ns"]
    ends_s = np.asarray(ends_ns / 1e9, np.float64)
    aligned_ranks = set(rows["rank"][aligned].tolist())
    ranks = sorted(set(rows["rank"].tolist()), key=lambda rank: (rank not in aligned_ranks, rank))
    is_reference = rows["rank"] == ranks[0]
    for rank in ranks[1:]:
        is_of_rank = rows["rank"] == rank
        if rank not in aligned_ranks:
            first = rows["iteration"][is_of_rank].min()
            is_later = is_reference & (rows["iteration"] >= first)
            reference_end_s = ends_s[is_later if is_later.any() else is_reference].min()
            ends_s[is_of_rank] += reference_end_s - ends_s[is_of_rank].min()
    return ends_s


class ReplayTimings(Timings):
    """The timings of a recording, up to the time of day of the last call of `advance`."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording
        self._rows = self._records = self._logged = 0
        self.vms = recording.run.vm_names()

    def advance(self, time_s: float, *, playing: bool) -> None:
        """Add the rows, records and values up to a time of day.

        The last cell counts as running if the replay is `playing` and more rows follow.
        """
        recording = self._recording
        rows = int(np.searchsorted(recording.row_times_s, time_s, side="right"))
        records = int(np.searchsorted(recording.record_times_s, time_s, side="right"))
        new_records: list[CollectiveRecord] = recording.records[self._records : records]
        logged = int(np.searchsorted(recording.logged_times_s, time_s, side="right"))
        if logged > self._logged:  # before the rows, because the view reads values with their rows
            names, values = recording.logged
            self._store.logged.restore(LoggedTable(names, values[self._logged : logged]))
            self._logged = logged
        if rows > self._rows:
            self._store.extend(recording.rows[self._rows : rows], new_records)
            self._rows = rows
            self._records = records
        running = {self.newest_cell} if playing and rows < len(recording.rows) else set()
        changed = running != self._running
        self._running = running
        if changed or new_records:
            self._notify()

    def known_clocks(self) -> None:  # type: ignore[override]  # the rows have their offsets
        """Return None, because the rows of a recording are already aligned."""

    def _align(self, rows: Rows) -> Rows:
        return rows
