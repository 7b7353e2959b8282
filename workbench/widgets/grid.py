"""A window's rows as one array per column: iterations by ranks."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from workbench.timings.derive import EXPOSED_PARTS, mean_parts
from workbench.timings.summary import profiled_note, warm_note
from workbench.widgets.source import COLUMNS, FIRST, PROFILED, RowWindow

Array = NDArray[np.float64]


class Grid:
    """The rows of a window by iteration and rank, in the order of `ranks`; NaN for missing rows."""

    def __init__(self, window: RowWindow, ranks: list[int]) -> None:
        self._data = window.data.astype(np.float64)
        self.ranks = ranks
        numbers = self._data[0]
        self.iterations = np.unique(numbers).astype(int)
        self._rows = np.searchsorted(self.iterations, numbers)
        places = {rank: place for place, rank in enumerate(ranks)}
        self._places = np.array([places.get(int(rank), -1) for rank in self._data[1]], dtype=int)

    def __len__(self) -> int:
        return len(self.iterations)

    def column(self, name: str) -> Array:
        """Return one column, of shape (iterations, ranks)."""
        values = np.full((len(self), len(self.ranks)), np.nan)
        known = self._places >= 0
        values[self._rows[known], self._places[known]] = self._data[COLUMNS.index(name)][known]
        return values

    def mean(self, name: str) -> Array:
        """Return the mean over the ranks with a value, of shape (iterations,)."""
        return mean(self.column(name), axis=1)


def warm(window: RowWindow) -> tuple[RowWindow, list[str]]:
    """Return a window without the iterations that means leave out, and notes on them.

    Like `workbench.timings.store.warm`: without first iterations of cells and without profiled
    ones, unless there are no others.
    """
    marks = window.data[COLUMNS.index("left_out")]
    kept = next((mark for mark in (0, PROFILED, FIRST) if (marks == mark).any()), 0)
    first, profiled = (len(np.unique(window.data[0, marks == mark])) for mark in (FIRST, PROFILED))
    notes = [
        warm_note(0 if kept == FIRST else first),
        profiled_note(profiled, left_out=kept != PROFILED),
    ]
    used = RowWindow(window.cursor, window.data[:, marks == kept])
    return used, [note for note in notes if note]


def rank_means(grid: Grid, names: list[str]) -> dict[str, Array]:
    """Return the mean of columns over the iterations, by rank.

    Bandwidths are weighted by the duration of the communication, so that the result is
    the bytes over the total time. The parts of the exposed time add up to it (`mean_parts`).
    """
    time_us = np.nan_to_num(grid.column("communication_us"))
    means = {}
    for name in names:
        values = grid.column(name)
        if name.endswith("_gbps"):
            weights = np.where(np.isnan(values), 0.0, time_us)
            total = weights.sum(axis=0)
            sums = (np.nan_to_num(values) * weights).sum(axis=0)
            means[name] = np.divide(sums, total, out=np.full(len(total), np.nan), where=total > 0)
        else:
            means[name] = mean(values, axis=0)
    if set(EXPOSED_PARTS) & set(names):
        parts = [grid.column(name).T for name in ("exposed_us", *EXPOSED_PARTS)]
        by_rank = np.array([mean_parts(*values) for values in zip(*parts, strict=True)])
        means |= dict(zip(EXPOSED_PARTS, by_rank.T, strict=True))
    return means


def mean(values: Array, axis: int | None = None) -> Array:
    """Return the mean of the values that are not NaN; NaN without a warning if there are none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmean(values, axis=axis))


def decimate(values: Array, columns: int) -> Array:
    """Return the means of equal intervals along the first axis, at most `columns` of them."""
    step = max(1, -(-len(values) // columns))
    starts = range(0, len(values), step)
    return np.array([mean(values[at : at + step], axis=0) for at in starts])
