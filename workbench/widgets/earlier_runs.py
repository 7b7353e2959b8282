"""Iteration times of stored runs, for the comparison with a live run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workbench.errors import WorkbenchError
from workbench.resources import Unknown
from workbench.timings.run import Run
from workbench.timings.runs import all_runs, find
from workbench.timings.store import Rows
from workbench.timings.summary import summarize

MAX_NAMES = 50
MAX_POINTS = 4096
"""Limit of the number of times that are sent (40 KB).

The times of a longer run are means over successive iterations.
"""


@dataclass(frozen=True)
class EarlierRun:
    """The iteration times of a stored run, for the comparison with a live run.

    Attributes
    ----------
    name
        The run's name, as shown by ``%timings list``.
    iterations
        Number of iterations of the run.
    each
        Number of successive iterations over which each of `times_us` is averaged.
    times_us
        Mean durations over `each` iterations and the ranks, from iteration 0 on; None if unknown.
    mean_us
        The mean duration of an iteration, without the iterations that `timings.figures.untypical`
        excludes.
    """

    name: str
    iterations: int
    each: int
    times_us: tuple[float | None, ...]
    mean_us: float


def earlier_runs(current_path: Path | None) -> tuple[str, ...]:
    """Return the names of the stored runs, the newest first, without the run at `current_path`."""
    return tuple(run.path.name for run in all_runs() if run.path != current_path)[:MAX_NAMES]


def earlier_run(name: str) -> EarlierRun | Unknown:
    """Return the iteration times of a stored run, or why they are unknown."""
    try:
        rows = Run(find(name)).rows()  # the rows that can be read
    except WorkbenchError as error:
        return Unknown(str(error))
    if not len(rows):
        return Unknown(f"run {name}: it has no iteration. Choose another run.")
    iterations_per_time, times = _times(rows)
    return EarlierRun(
        name,
        int(rows["iteration"].max()) + 1,
        iterations_per_time,
        times,
        summarize(rows).iteration_us,
    )


def _times(rows: Rows) -> tuple[int, tuple[float | None, ...]]:
    """Return how many iterations each time covers, and the times: means in microseconds."""
    iterations = rows["iteration"]
    iterations_per_time = -(-(int(iterations.max()) + 1) // MAX_POINTS)
    counts = np.bincount(iterations // iterations_per_time)
    sums = np.bincount(iterations // iterations_per_time, weights=rows["iteration_ns"] / 1e3)
    totals_and_counts = zip(sums.tolist(), counts.tolist(), strict=True)
    return iterations_per_time, tuple(
        round(total / count, 1) if count else None for total, count in totals_and_counts
    )
