"""A window's rows as one array per column: iterations by ranks."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from workbench.widgets.source import COLUMNS, Window

Array = NDArray[np.float64]


class Grid:
    """Rows of a window by iteration and rank, NaN where there is no row.

    Parameters
    ----------
    window
        The rows.
    ranks
        The ranks, in the order of the second axis.
    """

    def __init__(self, window: Window, ranks: list[int]) -> None:
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
        """One column, of shape (iterations, ranks)."""
        values = np.full((len(self), len(self.ranks)), np.nan)
        known = self._places >= 0
        values[self._rows[known], self._places[known]] = self._data[COLUMNS.index(name)][known]
        return values

    def mean(self, name: str) -> Array:
        """The mean over the ranks that are known, of shape (iterations,)."""
        return mean(self.column(name), axis=1)


def warm(window: Window) -> tuple[Window, int]:
    """Return a window without first iterations of cells, which warm up, and how many those are.

    The window as it is where it has no others.
    """
    first = window.data[COLUMNS.index("first")] > 0
    if first.all() or not first.any():
        return window, 0
    left_out = len(np.unique(window.data[0, first]))
    return Window(window.cursor, window.data[:, ~first]), left_out


def rank_means(grid: Grid, names: list[str]) -> dict[str, Array]:
    """Means of columns over the iterations, by rank; bandwidths by the time they took.

    So bytes over mean time is the mean bandwidth.
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
    return means


def mean(values: Array, axis: int | None = None) -> Array:
    """The mean of what is known; NaN where nothing is, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmean(values, axis=axis))


def decimate(values: Array, columns: int) -> Array:
    """Means of equal runs along the first axis, at most `columns` of them."""
    step = max(1, -(-len(values) // columns))
    starts = range(0, len(values), step)
    return np.array([mean(values[at : at + step], axis=0) for at in starts])
