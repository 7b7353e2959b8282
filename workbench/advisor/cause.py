"""One reason why iterations take as long as they do."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workbench.timings.verdict import saving_text

CONFIDENCE = 0.9
"""Probability that an interval of a saving is to contain its mean."""
LEAST_ITERATIONS = 8
"""Fewest iterations from which an interval is taken."""
_RESAMPLES = 400

TOO_FEW = f"fewer than {LEAST_ITERATIONS} iterations do not show how much it varies"


@dataclass(frozen=True)
class Cause:
    """One reason why iterations take as long as they do.

    Attributes
    ----------
    name
        Name of the cause, such as ``"exposed communication"``.
    evidence
        What was measured.
    cure
        What would help.
    saving_us
        Predicted saving per iteration, an upper bound if `bound` is true; NaN if unknown.
    saving_share
        The same as a share of the iteration.
    bound
        Whether `saving_us` is only an upper bound.
    low_us, high_us
        Where `saving_us` is with a probability of `CONFIDENCE`; NaN if unknown. It combines how
        the time varies from iteration to iteration (see `interval`) with the error of the model:
        of the calibration, or of the simulation of the measured iteration.
    unknown
        Why the saving or its interval is unknown; empty if both are known.
    measure
        What to measure to know more; empty if nothing is missing.
    """

    name: str
    evidence: str
    cure: str
    saving_us: float
    saving_share: float
    bound: bool
    low_us: float = math.nan
    high_us: float = math.nan
    unknown: str = ""
    measure: str = ""

    @property
    def saving(self) -> str:
        """The saving in words, such as ``"up to 12.00 ms (30%)"``; ``"unknown"`` if it is."""
        if math.isnan(self.saving_us):
            return "unknown"
        return saving_text(self.saving_us, self.saving_share, bound=self.bound)

    @property
    def uncertainty(self) -> str:
        """The interval of the saving in words, or why it is unknown."""
        if math.isnan(self.low_us + self.high_us):
            return f"unknown: {self.unknown}"
        return f"{self.low_us / 1e3:.2f} to {self.high_us / 1e3:.2f} ms"

    @property
    def prediction(self) -> str:
        """The saving and its interval in words, or why the saving is unknown."""
        if math.isnan(self.saving_us):
            return self.uncertainty
        return f"{self.saving} [{self.uncertainty}]"

    @property
    def text(self) -> str:
        """The evidence, the cure, and what to measure, in sentences."""
        text = f"{self.evidence}. {self.cure}."
        return f"{text} To measure: {self.measure}." if self.measure else text

    def __str__(self) -> str:
        """Return all of it in one line."""
        return f"{self.prediction}  {self.name}: {self.text}"


def interval(
    values: npt.NDArray[np.float64], saving_us: float, error_us: float = 0.0
) -> tuple[float, float]:
    """Return where a mean saving lies with a probability of `CONFIDENCE`; NaN if unknown.

    A block bootstrap: blocks of consecutive iterations, of which each is as long as the cube root
    of their number, are drawn at random until they are as many iterations again. The first
    iteration follows the last one, so that all are drawn equally often. The means of such draws
    vary as means of other iterations would, also if iterations depend on those before.

    Parameters
    ----------
    values
        The time in each iteration to which the saving is proportional.
    saving_us
        The saving per iteration.
    error_us
        The error of the model from which the saving comes. It widens the interval on both sides.
    """
    count, mean = len(values), float(values.mean()) if len(values) else 0.0
    if count < LEAST_ITERATIONS or not math.isfinite(mean + saving_us + error_us):
        return math.nan, math.nan
    if mean <= 0:
        return max(0.0, saving_us - error_us), saving_us + error_us
    length = max(1, round(count ** (1 / 3)))
    draw = np.random.default_rng(0)  # the same answer each time
    begins = draw.integers(0, count, (_RESAMPLES, -(-count // length)))
    sums = np.concatenate([[0.0], np.cumsum(np.append(values, values[: length - 1]))])
    means = (sums[begins + length] - sums[begins]).mean(axis=1) / length
    tail = (1 - CONFIDENCE) / 2
    low, high = (float(one) / mean * saving_us for one in np.quantile(means, (tail, 1 - tail)))
    return max(0.0, min(low, saving_us) - error_us), max(high, saving_us) + error_us
