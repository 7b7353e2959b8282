"""The figures of two runs, their differences, and the uncertainties of these."""

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
_BANDWIDTHS = frozenset({"algbw_gbps", "busbw_gbps"})


@dataclass(frozen=True)
class FigureDifference:
    """One figure of two runs, `a` and `b`.

    Attributes
    ----------
    figure
        A column of `to_frame`; its ending is its unit.
    a, b
        Means over iterations and ranks, as in a `Summary`; means of bandwidths are weighted by
        the duration of the communication.
    a_spread, b_spread
        Standard deviations over the iterations.
    difference
        `b` minus `a`.
    uncertainty
        Half the 95 % interval of `difference`: 1.96 times the standard error of a difference
        of two means, each spread / sqrt(n) for n iterations. A lower bound, because
        neighbouring iterations are not independent.
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
        The names of both runs.
    iterations, left_out, ranks
        Of both runs: the numbers of iterations in the figures, of first iterations of cells that
        are left out, and of ranks.
    differences
        One per figure that both runs have.
    notes
        Of both runs: sentences on the iterations that are left out.
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

        return pd.DataFrame([asdict(one) | {"clear": one.clear} for one in self.differences])


def compare(a: Rows, b: Rows, names: tuple[str, str]) -> Comparison:
    """Compare the iterations `b` with the iterations `a`.

    The first iteration of each cell is left out unless there are no others, as in a `Summary`.
    A figure that is unknown in one run is left out.

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
    left, right = typical(a), typical(b)
    figures, others = _figures(left), _figures(right)
    return Comparison(
        names,
        (_count(left, "iteration"), _count(right, "iteration")),
        (first_left_out(a, left), first_left_out(b, right)),
        (_count(left, "rank"), _count(right, "rank")),
        tuple(
            _difference(figure, values, others[figure])
            for figure, values in figures.items()
            if len(values[0]) and len(others[figure][0])
        ),
        (left_out_notes(a), left_out_notes(b)),
    )


def _count(rows: Rows, column: str) -> int:
    return len(np.unique(rows[column]))


def _figures(rows: Rows) -> dict[str, tuple[Values, Values]]:
    """Return each figure's means over ranks, by iteration, and their weights."""
    _, place = np.unique(rows["iteration"], return_inverse=True)
    table = columns(rows)
    time_us = np.nan_to_num(table["communication_us"])
    parts = [table[name] for name in EXPOSED_PARTS]
    wanted = mean_parts(table["exposed_us"], *parts)
    for name, part, mean in zip(EXPOSED_PARTS, parts, wanted, strict=True):
        table[name] = _scaled(part, mean)
    found = {}
    for name, values in table.items():
        if name not in _KEYS:
            weights = time_us if name in _BANDWIDTHS else np.ones(len(rows))
            means, total = group_means(np.asarray(values, dtype=np.float64), place, weights)
            found[name] = means[total > 0], total[total > 0]
    return found


def _scaled(part: Values, mean: float) -> Values:
    """Return a part of the exposed time, scaled so that its mean is `mean`."""
    known = part[~np.isnan(part)]
    if math.isnan(mean):
        return np.full(len(part), np.nan)
    return np.asarray(part * (mean / known.mean())) if known.any() else part


def _difference(
    figure: str, a: tuple[Values, Values], b: tuple[Values, Values]
) -> FigureDifference:
    (mean, spread), (other, other_spread) = (
        (float(np.average(values, weights=weights)), float(np.std(values)))
        for values, weights in (a, b)
    )
    error = math.hypot(spread / math.sqrt(len(a[0])), other_spread / math.sqrt(len(b[0])))
    return FigureDifference(figure, mean, spread, other, other_spread, other - mean, 1.96 * error)
