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
_BANDWIDTHS = frozenset({"algbw_gbps", "busbw_gbps"})


@dataclass(frozen=True)
class Difference:
    """One figure of two runs: `a`, and `b` held against it.

    Attributes
    ----------
    figure
        A column of `to_frame`; its ending is its unit.
    a, b
        Means over iterations and ranks, as in a `Summary`; of a bandwidth, by the time that
        the communication took.
    a_spread, b_spread
        Standard deviations over the iterations.
    difference
        `b` minus `a`.
    uncertainty
        Half the 95 % interval of `difference`, from the spreads and the numbers
        of iterations: 1.96 times the standard error of a difference of two
        means, each spread / sqrt(n). Neighbouring iterations are not
        independent, so it is the least that it can be.
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
    iterations, left_out, ranks
        Of both: how many iterations the figures cover, how many first ones of cells they leave
        out, and of how many ranks they are.
    differences
        One per figure that both have.
    """

    names: tuple[str, str]
    iterations: tuple[int, int]
    left_out: tuple[int, int]
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
                f"Cannot compare {names[0]} and {names[1]}: {name} has no iteration. Choose runs "
                "that have trained."
            )
    left, right = warm(a), warm(b)
    figures, others = _figures(left), _figures(right)
    return Comparison(
        names,
        (_count(left, "iteration"), _count(right, "iteration")),
        (
            _count(a, "iteration") - _count(left, "iteration"),
            _count(b, "iteration") - _count(right, "iteration"),
        ),
        (_count(left, "rank"), _count(right, "rank")),
        tuple(
            _difference(figure, values, others[figure])
            for figure, values in figures.items()
            if len(values[0]) and len(others[figure][0])
        ),
    )


def _count(rows: Rows, column: str) -> int:
    return len(np.unique(rows[column]))


def _figures(rows: Rows) -> dict[str, tuple[Values, Values]]:
    """Return each figure's means over ranks of the iterations that know it, and their weights."""
    _, place = np.unique(rows["iteration"], return_inverse=True)
    table = columns(rows)
    time_us = np.nan_to_num(table["communication_us"])
    found = {}
    for name, values in table.items():
        if name not in _KEYS:
            weights = time_us if name in _BANDWIDTHS else np.ones(len(rows))
            found[name] = _means(np.asarray(values, dtype=np.float64), weights, place)
    return found


def _means(values: Values, weights: Values, place: Any) -> tuple[Values, Values]:
    known = ~np.isnan(values) & (weights > 0)
    counts = np.bincount(place[known], weights[known])
    sums = np.bincount(place[known], values[known] * weights[known])
    some = counts > 0
    return np.asarray(sums[some] / counts[some]), np.asarray(counts[some])


def _difference(figure: str, a: tuple[Values, Values], b: tuple[Values, Values]) -> Difference:
    (mean, spread), (other, other_spread) = (
        (float(np.average(values, weights=weights)), float(np.std(values)))
        for values, weights in (a, b)
    )
    error = math.hypot(spread / math.sqrt(len(a[0])), other_spread / math.sqrt(len(b[0])))
    return Difference(figure, mean, spread, other, other_spread, other - mean, 1.96 * error)
