"""The means of figures; no other module computes them.

A figure is declared in `workbench.schema.figures`. Its mean is over the *typical* iterations
(`typical`), and a text that shows it names them (`iterations_text`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.schema.figures import FIGURES, Figure
from workbench.timings.derive import EXPOSED_PARTS, mean_parts
from workbench.timings.store import Rows, first_of_cell, profiled

Column = npt.NDArray[Any]

FIRST = 1
"""Reason why an iteration is not typical: it is the first of its cell, a warm-up."""
PROFILED = 2
"""Reason why an iteration is not typical: it was profiled."""

_PREFERENCE = np.array([0, 2, 1])
"""The rank of the reasons 0, `FIRST` and `PROFILED` in the order of preference: typical iterations
come first, then profiled iterations, then the first iterations of cells."""


def typical(rows: Rows) -> Rows:
    """Return the rows of typical iterations, which means are computed over.

    A typical iteration is neither the first of a cell nor profiled. If successive cells have one
    iteration each, only the first of these iterations is a warm-up. If there are no typical
    iterations, return the profiled iterations; if there are none, return all.
    """
    reasons = untypical(rows)
    return np.asarray(rows[reasons == most_typical(reasons)])


def untypical(rows: Rows) -> Column:
    """Return the reason why each row is not typical, `FIRST` or `PROFILED`; 0 if it is typical."""
    is_first = first_of_cell(rows)
    return np.where(is_first, FIRST, profiled(rows) * PROFILED)


def most_typical(reasons: Column) -> int:
    """Return the reason (see `untypical`) of the most typical rows."""
    return int(reasons[np.argmin(_PREFERENCE[reasons])]) if len(reasons) else 0


def is_most_typical(reasons: Column, begins: Column) -> Column:
    """Return a mask of the most typical rows of each group.

    Parameters
    ----------
    reasons
        The result of `untypical`, for rows that are ordered by group.
    begins
        The index of the first row of each group.
    """
    preference = _PREFERENCE[reasons]
    best = np.minimum.reduceat(preference, begins)
    return np.asarray(preference == np.repeat(best, np.diff(begins, append=len(reasons))))


def mean(values: Column, weights: Column | None = None) -> float:
    """Return the mean of the values that are known, or NaN if there are none.

    Parameters
    ----------
    values
        Array of any shape; NaN where unknown.
    weights
        Array of the same shape; a value with the weight 0 or NaN does not count.

    Examples
    --------
    >>> import numpy as np
    >>> mean(np.array([1.0, np.nan, 3.0]))
    2.0
    >>> mean(np.array([1.0, 3.0]), np.array([3.0, 1.0]))
    1.5
    """
    is_known = ~np.isnan(values)
    if weights is not None:
        is_known &= weights > 0
    if not is_known.any():
        return float("nan")
    known_weights = None if weights is None else weights[is_known]
    return float(np.average(values[is_known], weights=known_weights))


def means(table: Mapping[str, Column], names: Iterable[str]) -> dict[str, float]:
    """Return the means of figures by name.

    The means of the parts of the exposed time (`EXPOSED_PARTS`) add up to the mean of
    ``exposed_us``.

    Parameters
    ----------
    table
        Columns of equal shape; it has at least the columns that the named figures need.
    names
        Names of figures.
    """
    figure_means = {name: _mean_of(FIGURES[name], table) for name in names}
    if set(EXPOSED_PARTS) & set(figure_means):
        parts = mean_parts(*(table[name] for name in ("exposed_us", *EXPOSED_PARTS)))
        for name, part in zip(EXPOSED_PARTS, parts, strict=True):
            if name in figure_means:
                figure_means[name] = part
    return figure_means


def _mean_of(figure: Figure, table: Mapping[str, Column]) -> float:
    if figure.whole:
        part = table[figure.part]
        whole = table[figure.whole]
        return mean(
            np.divide(part, whole, out=np.full(whole.shape, np.nan), where=whole > 0), whole
        )
    return mean(table[figure.name], table[figure.weight] if figure.weight else None)


def iterations_text(first: int, last: int) -> str:
    """Return the text that names the iterations of a figure; all views use it.

    Examples
    --------
    >>> iterations_text(1230, 1329)
    'iterations 1,230 to 1,329'
    >>> iterations_text(7, 7)
    'iteration 7'
    """
    return f"iteration {first:,}" if first == last else f"iterations {first:,} to {last:,}"
