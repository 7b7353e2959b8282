"""A window's rows as one array per column: iterations by ranks."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from workbench.timings import figures
from workbench.timings.derive import EXPOSED_PARTS
from workbench.timings.summary import profiled_note, warm_note
from workbench.widgets.source import COLUMNS, RowWindow

Array = NDArray[np.float64]

_ITERATION = COLUMNS.index("iteration")
_RANK = COLUMNS.index("rank")
_EXPOSED = ("exposed_us", *EXPOSED_PARTS)


class Grid:
    """The rows of a window by iteration and rank, in the order of `ranks`; NaN for missing rows.

    Attributes
    ----------
    ranks
        The rank of each column.
    iterations
        The number of each iteration, ascending.
    """

    def __init__(self, window: RowWindow, ranks: list[int]) -> None:
        self._data = window.data.astype(np.float64)
        self.ranks = ranks
        row_iterations = self._data[_ITERATION]
        self.iterations = np.unique(row_iterations).astype(int)
        self._rows = np.searchsorted(self.iterations, row_iterations)
        columns_by_rank = {rank: column for column, rank in enumerate(ranks)}
        self._columns = np.array(
            [columns_by_rank.get(int(rank), -1) for rank in self._data[_RANK]], dtype=int
        )

    def __len__(self) -> int:
        return len(self.iterations)

    def column(self, name: str) -> Array:
        """Return one column, of shape (iterations, ranks)."""
        values = np.full((len(self), len(self.ranks)), np.nan)
        has_rank = self._columns >= 0
        values[self._rows[has_rank], self._columns[has_rank]] = self._data[COLUMNS.index(name)][
            has_rank
        ]
        return values

    def mean(self, name: str) -> Array:
        """Return the mean over the ranks with a value, of shape (iterations,)."""
        return mean(self.column(name), axis=1)


def typical(window: RowWindow) -> tuple[RowWindow, list[str]]:
    """Return the typical iterations (`figures.typical`), and notes on the excluded iterations."""
    reasons = window.data[COLUMNS.index("left_out")].astype(int)
    kept = figures.most_typical(reasons)
    first_count, profiled_count = (
        len(np.unique(window.data[_ITERATION, reasons == reason]))
        for reason in (figures.FIRST, figures.PROFILED)
    )
    notes = [
        warm_note(0 if kept == figures.FIRST else first_count),
        profiled_note(profiled_count, left_out=kept != figures.PROFILED),
    ]
    kept_window = RowWindow(window.cursor, window.data[:, reasons == kept])
    return kept_window, [note for note in notes if note]


def rank_means(
    grid: Grid, names: list[str], rank_limit: int | None = None
) -> tuple[dict[str, Array], dict[str, float]]:
    """Return the means of columns over the iterations: of each rank, and of all ranks together.

    Arrays have shape (ranks,), in the order of the grid's ranks. They contain the first
    `rank_limit` ranks, or all ranks if `rank_limit` is None. See `figures.means`.
    """
    table = {name: grid.column(name) for name in {*names, "communication_us", *_EXPOSED}}
    ranks = [
        figures.means({name: values[:, column] for name, values in table.items()}, names)
        for column in range(len(grid.ranks[:rank_limit]))
    ]
    by_rank = {name: np.array([rank[name] for rank in ranks]) for name in names}
    return by_rank, figures.means(table, names)


def mean(values: Array, axis: int | None = None) -> Array:
    """Return the mean of the values that are not NaN; NaN without a warning if there are none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmean(values, axis=axis))


def decimate(values: Array, max_means: int) -> Array:
    """Return the means of equal intervals along the first axis, at most `max_means` means.

    Examples
    --------
    >>> decimate(np.array([1.0, 3.0, 5.0, np.nan]), 2)
    array([2., 5.])
    """
    step = max(1, -(-len(values) // max_means))
    starts = range(0, len(values), step)
    return np.array([mean(values[start : start + step], axis=0) for start in starts])
