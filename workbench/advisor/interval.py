"""The interval in which a mean saving per iteration lies."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.9
"""Probability that an interval of a saving is to contain its mean."""
LEAST_ITERATIONS = 8
"""Fewest iterations from which an interval is taken."""
_RESAMPLES = 400

TOO_FEW = f"fewer than {LEAST_ITERATIONS} iterations do not show how much it varies"


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
