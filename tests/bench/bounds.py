"""How a benchmark states what is asked of a figure.

``measure()`` of a benchmark is a generator: it prints what it measures, and yields a `Bound` for
each figure that has a limit. It raises `NotMeasured` where this machine lacks what it needs.
"""

import os
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from tests.bench.stats import spread

SMOKE_VARIABLE = "BENCH_SMOKE"
"""Set by ``--smoke``: every benchmark does little, and no bound is judged."""


class NotMeasured(Exception):
    """What the benchmark needs is missing on this machine; the text names it."""


class Bound(NamedTuple):
    """A figure and its limit.

    Attributes
    ----------
    figure
        What was measured.
    value
        The number that is compared with the limit; NaN if it is unknown, which misses the bound.
    limit
        The largest value that is allowed, or the smallest if `is_minimum`.
    unit
        The unit of both, which may be empty.
    text
        The value as it is printed, with its spread if it is a median.
    """

    figure: str
    value: float
    limit: float
    unit: str
    text: str
    is_minimum: bool = False

    @property
    def is_met(self):
        """Whether the value keeps the limit."""
        return self.value >= self.limit if self.is_minimum else self.value <= self.limit

    def __str__(self):
        kind = "at least" if self.is_minimum else "at most"
        unit = self.unit and f" {self.unit}"
        return f"{self.figure}  {self.text}{unit}, {kind} {self.limit:g}{unit} is asked"


def at_most(figure, measured, limit, unit="", judge=statistics.median):
    """Return the bound of a number, or of several, of which `judge` makes the number."""
    return _bound(figure, measured, limit, unit, judge)


def at_least(figure, measured, limit, unit="", judge=statistics.median):
    """Return the bound of a number that must reach its limit, or of several."""
    return _bound(figure, measured, limit, unit, judge)._replace(is_minimum=True)


def _bound(figure, measured, limit, unit, judge):
    if isinstance(measured, Sequence):
        return Bound(figure, judge(measured), limit, unit, spread(measured))
    return Bound(figure, measured, limit, unit, f"{measured:.3g}")


def sized(full, smoke):
    """Return a size or a number of repetitions: the full one, or that of a smoke run."""
    return smoke if os.environ.get(SMOKE_VARIABLE) else full
