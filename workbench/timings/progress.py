"""Samples, passes over the data, and what communication has cost so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.timings.store import Rows, communication_unseen

Column = npt.NDArray[Any]
_HOUR_NS = 3.6e12


@dataclass(frozen=True)
class TrainingProgress:
    """Figures of a training; NaN where unknown.

    Attributes
    ----------
    samples_per_s
        Of all ranks together, from the first dimension of their batches.
    epochs
        Passes over the data of a rank's DataLoader, with the part of the current one.
    epoch_left_s
        Time to the end of the current pass, at the mean rate.
    exposed_hours
        Hours in which a rank has waited for gradients: the mean of the ranks.
    communication_cpu_s
        CPU seconds of the backend's threads, per iteration and rank.
    """

    samples_per_s: float
    epochs: float
    epoch_left_s: float
    exposed_hours: float
    communication_cpu_s: float

    def __str__(self) -> str:
        """Return the figures as one line."""
        unknown = "samples/s unknown (batches without a common first dimension)"
        parts = [
            unknown if np.isnan(self.samples_per_s) else f"{self.samples_per_s:,.0f} samples/s"
        ]
        if not np.isnan(self.epochs):
            unknown = np.isnan(self.epoch_left_s)
            left = "" if unknown else f", {_duration(self.epoch_left_s)} left"
            parts.append(f"epoch {self.epochs:.2f}{left}")
        if not np.isnan(self.exposed_hours):
            parts.append(f"{_duration(self.exposed_hours * 3600)} lost to exposed communication")
        if not np.isnan(self.communication_cpu_s):
            cpu_ms = self.communication_cpu_s * 1e3
            parts.append(f"{cpu_ms:.2f} ms CPU for communication per iteration")
        return "; ".join(parts)


class SoFar:
    """What adds up over all iterations of a training; `add` receives all rows in their order.

    Rows that are added at once may be in any order.
    """

    def __init__(self) -> None:
        self._epochs = 0.0
        self._left = np.nan
        self._rank, self._cell, self._batch = -1, -1, 0
        self._exposed_ns: dict[int, float] = {}
        self._timed = False

    def add(self, rows: Rows) -> None:
        """Add rows of any ranks; passes over the data are those of the lowest rank."""
        ranks, places = np.unique(rows["rank"], return_inverse=True)
        exposed_ns = np.bincount(places, rows["exposed_ns"])
        for rank, spent_ns in zip(ranks.tolist(), exposed_ns.tolist(), strict=True):
            self._exposed_ns[rank] = self._exposed_ns.get(rank, 0.0) + spent_ns
        self._timed |= not communication_unseen(rows).all()
        lowest = min(self._exposed_ns, default=-1)
        if lowest != self._rank:  # it has had no row before
            self._rank, self._epochs, self._cell, self._batch = lowest, 0.0, -1, 0
        own = rows[(rows["rank"] == lowest) & (rows["batches"] > 0) & (rows["batch"] > 0)]
        own = own[np.argsort(own["iteration"], kind="stable")]
        if not len(own):
            return
        batch = own["batch"].astype(np.float64)
        before = np.concatenate([[self._batch], batch[:-1]])
        cells = np.concatenate([[self._cell], own["cell"][:-1]])
        steps = batch - np.where((batch > before) & (own["cell"] == cells), before, 0)
        self._epochs += float((steps / own["batches"]).sum())
        self._cell, self._batch = int(own["cell"][-1]), int(batch[-1])
        # a batch may be beyond the length that its loader has reported
        left = max(own["batches"][-1] - batch[-1], 0.0)
        self._left = float(left / max(np.median(steps), 1))

    def progress(self, rows: Rows) -> TrainingProgress:
        """Return the progress, with means of `rows`."""
        mean_s = float(rows["iteration_ns"].mean()) / 1e9 if len(rows) else np.nan
        hours = sum(self._exposed_ns.values()) / max(1, len(self._exposed_ns)) / _HOUR_NS
        return TrainingProgress(
            _samples_per_s(rows),
            self._epochs or np.nan,
            self._left * mean_s,
            hours if self._timed else np.nan,
            _mean(cpu_us(rows)) / 1e6,
        )


def progress(every: Rows, rows: Rows) -> TrainingProgress:
    """Return the progress of a training: totals of `every` row, and means of `rows`."""
    so_far = SoFar()
    so_far.add(every)
    return so_far.progress(rows)


def samples(rows: Rows) -> Column:
    """Return the samples of each row, NaN if unknown."""
    return np.where(rows["samples"] > 0, rows["samples"], np.nan)


def samples_per_s(rows: Rows) -> Column:
    """Return the samples per second of each row's rank, NaN if unknown."""
    duration = np.where(rows["iteration_ns"] > 0, rows["iteration_ns"], np.nan)
    return np.asarray(samples(rows) / duration * 1e9)


def cpu_us(rows: Rows) -> Column:
    """Return the CPU time of communication of each row in microseconds, NaN if unknown.

    A rank reads it when it sends records, several at once, which get the mean since the reading
    before. The first reading of a cell has none before it.
    """
    found = np.full(len(rows), np.nan)
    order = np.lexsort((rows["iteration"], rows["cell"], rows["rank"]))
    rank, cell, read = (rows[name][order] for name in ("rank", "cell", "communication_cpu_ns"))
    new = np.ones(len(rows), bool)
    same = (rank[1:] == rank[:-1]) & (cell[1:] == cell[:-1])
    new[1:] = ~same | (read[1:] != read[:-1])
    first = np.flatnonzero(new)
    if len(first) > 1:
        follows = np.concatenate([[False], same[first[1:] - 1]])
        counts = np.diff(np.append(first, len(rows)))
        spent = np.concatenate([[np.nan], np.diff(read[first].astype(np.float64))])
        known = follows & (spent >= 0) & (read[first] > 0)
        found[order] = np.where(known, spent / counts / 1e3, np.nan).repeat(counts)
    return found


def _samples_per_s(rows: Rows) -> float:
    """Return the sum of the ranks' rates; NaN if that of one is unknown."""
    _, places = np.unique(rows["rank"], return_inverse=True)
    known, durations = samples(rows), rows["iteration_ns"].astype(np.float64)
    spent_ns = np.bincount(places, durations)
    if not len(rows) or not spent_ns.all():
        return np.nan
    return float((np.bincount(places, known) / spent_ns).sum() * 1e9)


def _duration(seconds: float) -> str:
    """Return a duration in the unit that suits it."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def _mean(values: Column) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else np.nan
