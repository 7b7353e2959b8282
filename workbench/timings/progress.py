"""Samples, passes over the data, and the cost of communication so far."""

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
    """Figures on the progress of a training; NaN where unknown.

    Attributes
    ----------
    samples_per_s
        Samples per second of all ranks together, from the first dimension of their batches.
    epochs
        Passes over the data of a rank's DataLoader, including the completed part of the current
        pass.
    epoch_left_s
        Seconds to the end of the current pass, at the mean rate.
    exposed_hours
        Hours that a rank has waited for gradients: the mean over the ranks.
    communication_cpu_s
        CPU seconds of the backend's threads, per iteration and rank.

    Examples
    --------
    >>> print(TrainingProgress(1024.0, 2.5, 90.0, 0.1, 0.002))
    1,024 samples/s; epoch 2.50, 1.5 min left; 6.0 min lost to exposed communication; 2.00 ms CPU
    for communication per iteration
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


class RunningTotals:
    """Totals over all iterations of a training.

    Calls of `add` must be in the order of time; the rows of one call may be in any order.
    """

    def __init__(self) -> None:
        self._epochs = 0.0
        self._iterations_left = np.nan
        self._lowest_rank = -1
        self._cell = -1
        self._batch = 0
        self._exposed_ns: dict[int, float] = {}
        self._has_communication_times = False

    def add(self, rows: Rows) -> None:
        """Add rows of any ranks; passes over the data are counted on the lowest rank."""
        ranks, rank_index = np.unique(rows["rank"], return_inverse=True)
        exposed_ns = np.bincount(rank_index, rows["exposed_ns"])
        for rank, spent_ns in zip(ranks.tolist(), exposed_ns.tolist(), strict=True):
            self._exposed_ns[rank] = self._exposed_ns.get(rank, 0.0) + spent_ns
        self._has_communication_times |= not communication_unseen(rows).all()
        lowest = min(self._exposed_ns, default=-1)
        if lowest != self._lowest_rank:  # this rank had no rows in earlier calls
            self._lowest_rank = lowest
            self._epochs = 0.0
            self._cell = -1
            self._batch = 0
        loads = rows[(rows["rank"] == lowest) & (rows["batches"] > 0) & (rows["batch"] > 0)]
        loads = loads[np.argsort(loads["iteration"], kind="stable")]
        if not len(loads):
            return
        batch = loads["batch"].astype(np.float64)
        previous_batch = np.concatenate([[self._batch], batch[:-1]])
        previous_cell = np.concatenate([[self._cell], loads["cell"][:-1]])
        steps = batch - np.where(
            (batch > previous_batch) & (loads["cell"] == previous_cell), previous_batch, 0
        )
        self._epochs += float((steps / loads["batches"]).sum())
        self._cell = int(loads["cell"][-1])
        self._batch = int(batch[-1])
        # the number of a batch may exceed the length that its loader has reported
        batches_left = max(loads["batches"][-1] - batch[-1], 0.0)
        self._iterations_left = float(batches_left / max(np.median(steps), 1))

    def progress(self, rows: Rows) -> TrainingProgress:
        """Return the progress, with means of `rows`."""
        mean_s = float(rows["iteration_ns"].mean()) / 1e9 if len(rows) else np.nan
        hours = sum(self._exposed_ns.values()) / max(1, len(self._exposed_ns)) / _HOUR_NS
        return TrainingProgress(
            _samples_per_s(rows),
            self._epochs or np.nan,
            self._iterations_left * mean_s,
            hours if self._has_communication_times else np.nan,
            _mean(cpu_us(rows)) / 1e6,
        )


def progress(all_rows: Rows, rows: Rows) -> TrainingProgress:
    """Return the progress of a training: totals over `all_rows`, and means over `rows`."""
    totals = RunningTotals()
    totals.add(all_rows)
    return totals.progress(rows)


def samples(rows: Rows) -> Column:
    """Return the number of samples of each row; NaN if unknown."""
    return np.where(rows["samples"] > 0, rows["samples"], np.nan)


def samples_per_s(rows: Rows) -> Column:
    """Return the samples per second of each row's rank; NaN if unknown."""
    duration = np.where(rows["iteration_ns"] > 0, rows["iteration_ns"], np.nan)
    return np.asarray(samples(rows) / duration * 1e9)


def cpu_us(rows: Rows) -> Column:
    """Return the CPU time of communication of each row in microseconds; NaN if unknown.

    A rank reads its CPU time when it sends records, usually of several iterations. Each of
    these iterations gets the mean since the previous reading. It is unknown for the first reading
    of a cell, which has no previous reading.
    """
    cpu_time_us = np.full(len(rows), np.nan)
    order = np.lexsort((rows["iteration"], rows["cell"], rows["rank"]))
    rank, cell, readings = (rows[name][order] for name in ("rank", "cell", "communication_cpu_ns"))
    is_new = np.ones(len(rows), bool)
    is_same_cell = (rank[1:] == rank[:-1]) & (cell[1:] == cell[:-1])
    is_new[1:] = ~is_same_cell | (readings[1:] != readings[:-1])
    first_index = np.flatnonzero(is_new)
    if len(first_index) > 1:
        has_previous = np.concatenate([[False], is_same_cell[first_index[1:] - 1]])
        counts = np.diff(np.append(first_index, len(rows)))
        spent_ns = np.concatenate([[np.nan], np.diff(readings[first_index].astype(np.float64))])
        is_known = has_previous & (spent_ns >= 0) & (readings[first_index] > 0)
        cpu_time_us[order] = np.where(is_known, spent_ns / counts / 1e3, np.nan).repeat(counts)
    return cpu_time_us


def _samples_per_s(rows: Rows) -> float:
    """Return the sum of the ranks' rates; NaN if the rate of any rank is unknown."""
    _, rank_index = np.unique(rows["rank"], return_inverse=True)
    sample_counts = samples(rows)
    spent_ns = np.bincount(rank_index, rows["iteration_ns"].astype(np.float64))
    if not len(rows) or not spent_ns.all():
        return np.nan
    return float((np.bincount(rank_index, sample_counts) / spent_ns).sum() * 1e9)


def _duration(seconds: float) -> str:
    """Return a duration as text, in hours, minutes or seconds."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def _mean(values: Column) -> float:
    """Return the mean of the values that are not NaN."""
    known_values = values[~np.isnan(values)]
    return float(known_values.mean()) if len(known_values) else np.nan
