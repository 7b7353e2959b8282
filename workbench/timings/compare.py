"""Two runs side by side: each figure of both, how they differ, and how sure that is."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from workbench.errors import UsageError
from workbench.timings.derive import columns
from workbench.timings.store import Rows, warm

if TYPE_CHECKING:
    import pandas as pd

Values = npt.NDArray[np.float64]

_KEYS = frozenset({"iteration", "rank"})
_NORMAL_IQR = 1.349
"""Interquartile range of a normal distribution with a standard deviation of 1."""


@dataclass(frozen=True)
class Difference:
    """One figure of two runs: `a`, and `b` held against it.

    Attributes
    ----------
    figure
        A column of `to_frame`; its ending is its unit.
    a, b
        Medians over iterations of means over ranks.
    a_spread, b_spread
        Interquartile ranges over the iterations.
    difference
        `b` minus `a`.
    uncertainty
        Half the 95 % interval of `difference`, from the spreads and the numbers
        of iterations: 1.96 times the standard error of a difference of two
        medians, each sqrt(pi / 2) sigma / sqrt(n), sigma = spread / 1.349
        (the large-sample error for normal values). Neighbouring iterations are
        not independent, so it is the least that it can be.
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
        What the two are called.
    iterations, ranks
        Of both: how many iterations the figures cover, and of how many ranks.
    differences
        One per figure that both have.
    """

    names: tuple[str, str]
    iterations: tuple[int, int]
    ranks: tuple[int, int]
    differences: tuple[Difference, ...]

    def to_frame(self) -> pd.DataFrame:
        """Return one row per figure: the fields of `Difference`, and ``clear``."""
        import pandas as pd

        return pd.DataFrame([asdict(one) | {"clear": one.clear} for one in self.differences])


def compare(a: Rows, b: Rows, names: tuple[str, str]) -> Comparison:
    """Hold the iterations `b` against the iterations `a`.

    The first iteration of each cell is left out where there are others, as in
    a `Summary`. A figure that one of the two does not know is left out.

    Raises
    ------
    UsageError
        One of them has no iteration.
    """
    for name, rows in zip(names, (a, b), strict=True):
        if not len(rows):
            raise UsageError(
                f"{names[0]} and {names[1]} were to be compared: {name} has no iteration"
            )
    left, right = warm(a), warm(b)
    figures, others = _figures(left), _figures(right)
    return Comparison(
        names,
        (_count(left, "iteration"), _count(right, "iteration")),
        (_count(left, "rank"), _count(right, "rank")),
        tuple(
            _difference(figure, values, others[figure])
            for figure, values in figures.items()
            if len(values) and len(others[figure])
        ),
    )


def _count(rows: Rows, column: str) -> int:
    return len(np.unique(rows[column]))


def _figures(rows: Rows) -> dict[str, Values]:
    """Return each figure's means over ranks, of the iterations that know it."""
    _, place = np.unique(rows["iteration"], return_inverse=True)
    return {
        name: _means(np.asarray(values, dtype=np.float64), place)
        for name, values in columns(rows).items()
        if name not in _KEYS
    }


def _means(values: Values, place: Any) -> Values:
    known = ~np.isnan(values)
    counts = np.bincount(place[known])
    sums = np.bincount(place[known], values[known])
    return np.asarray(sums[counts > 0] / counts[counts > 0])


def _difference(figure: str, a: Values, b: Values) -> Difference:
    middle, spread = float(np.median(a)), _spread(a)
    other, other_spread = float(np.median(b)), _spread(b)
    error = math.hypot(_error(spread, len(a)), _error(other_spread, len(b)))
    return Difference(figure, middle, spread, other, other_spread, other - middle, 1.96 * error)


def _spread(values: Values) -> float:
    low, high = np.percentile(values, [25, 75])
    return float(high - low)


def _error(spread: float, count: int) -> float:
    return math.sqrt(math.pi / 2 / count) * spread / _NORMAL_IQR
