"""The differences between the figures of two runs, and their uncertainties."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from workbench.errors import UsageError
from workbench.timings.derive import EXPOSED_PARTS, columns, group_means, mean_parts
from workbench.timings.figures import typical
from workbench.timings.store import Rows
from workbench.timings.summary import first_left_out, left_out_notes

if TYPE_CHECKING:
    import pandas as pd

Values = npt.NDArray[np.float64]

_KEYS = frozenset({"iteration", "rank"})
"""Columns that are not figures."""
_BANDWIDTHS = frozenset({"algbw_gbps", "busbw_gbps"})


@dataclass(frozen=True)
class FigureDifference:
    """One figure of two runs, `a` and `b`.

    Attributes
    ----------
    figure
        Name of a column of `to_frame`; it ends with the unit.
    a, b
        Means over iterations and ranks, as in a `Summary`; means of bandwidths are weighted by
        the duration of the communication.
    a_spread, b_spread
        Standard deviations over the iterations.
    difference
        `b` minus `a`.
    uncertainty
        Half the width of the 95 % interval of `difference`: 1.96 times the standard error of the
        difference of two means. The standard error of each mean is spread / sqrt(n) for n
        iterations. This is a lower bound, because neighbouring iterations are not independent.
    """

    figure: str
    a: float
    a_spread: float
    b: float
    b_spread: float
    difference: float
    uncertainty: float

    @property
    def clear(self) -> bool:
        """Whether the difference is larger than its uncertainty."""
        return abs(self.difference) > self.uncertainty


@dataclass(frozen=True)
class Comparison:
    """All figures of two runs, in the order of `to_frame`'s columns.

    Attributes
    ----------
    names
        The names of the two runs.
    iterations, left_out, ranks
        For each run: the numbers of iterations in the figures, of first iterations of cells that
        are left out, and of ranks.
    differences
        One difference per figure that both runs have.
    notes
        For each run: sentences on the iterations that are left out.
    """

    names: tuple[str, str]
    iterations: tuple[int, int]
    left_out: tuple[int, int]
    ranks: tuple[int, int]
    differences: tuple[FigureDifference, ...]
    notes: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    def to_frame(self) -> pd.DataFrame:
        """Return one row per figure: the fields of `FigureDifference`, and ``clear``."""
        import pandas as pd

        return pd.DataFrame([asdict(each) | {"clear": each.clear} for each in self.differences])


def compare(a: Rows, b: Rows, names: tuple[str, str]) -> Comparison:
    """Compare the iterations `b` with the iterations `a`.

    The first iteration of each cell is left out unless there are no others, as in a `Summary`.
    A figure that is unknown in either run is left out.

    Raises
    ------
    UsageError
        A run has no iteration.
    """
    for name, rows in zip(names, (a, b), strict=True):
        if not len(rows):
            raise UsageError(
                f"Cannot compare {names[0]} and {names[1]}: {name} has no iteration. Choose runs "
                "that have trained."
            )
    typical_a = typical(a)
    typical_b = typical(b)
    figures_a = _figures(typical_a)
    figures_b = _figures(typical_b)
    return Comparison(
        names,
        (_count(typical_a, "iteration"), _count(typical_b, "iteration")),
        (first_left_out(a, typical_a), first_left_out(b, typical_b)),
        (_count(typical_a, "rank"), _count(typical_b, "rank")),
        tuple(
            _difference(figure, values, figures_b[figure])
            for figure, values in figures_a.items()
            if len(values[0]) and len(figures_b[figure][0])
        ),
        (left_out_notes(a), left_out_notes(b)),
    )


def _count(rows: Rows, column: str) -> int:
    return len(np.unique(rows[column]))


def _figures(rows: Rows) -> dict[str, tuple[Values, Values]]:
    """Return the means of each figure over ranks, by iteration, and the weights of these means."""
    _, iteration_index = np.unique(rows["iteration"], return_inverse=True)
    table = columns(rows)
    time_us = np.nan_to_num(table["communication_us"])
    exposed_parts = [table[name] for name in EXPOSED_PARTS]
    part_means = mean_parts(table["exposed_us"], *exposed_parts)
    for name, part, mean in zip(EXPOSED_PARTS, exposed_parts, part_means, strict=True):
        table[name] = _scaled(part, mean)
    figures = {}
    for name, values in table.items():
        if name not in _KEYS:
            weights = time_us if name in _BANDWIDTHS else np.ones(len(rows))
            figure_values = np.asarray(values, dtype=np.float64)
            means, weight_sums = group_means(figure_values, iteration_index, weights)
            figures[name] = means[weight_sums > 0], weight_sums[weight_sums > 0]
    return figures


def _scaled(part: Values, mean: float) -> Values:
    """Return a part of the exposed time, scaled so that its mean is `mean`."""
    known_values = part[~np.isnan(part)]
    if math.isnan(mean):
        return np.full(len(part), np.nan)
    return np.asarray(part * (mean / known_values.mean())) if known_values.any() else part


def _difference(
    figure: str, a: tuple[Values, Values], b: tuple[Values, Values]
) -> FigureDifference:
    (mean, spread), (other, other_spread) = (
        (float(np.average(values, weights=weights)), float(np.std(values)))
        for values, weights in (a, b)
    )
    error = math.hypot(spread / math.sqrt(len(a[0])), other_spread / math.sqrt(len(b[0])))
    return FigureDifference(figure, mean, spread, other, other_spread, other - mean, 1.96 * error)
