"""The confidence interval of a mean saving per iteration."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.9
"""Probability that the interval of a saving contains its mean."""
MIN_ITERATIONS = 8
"""Minimum number of iterations for an interval."""
_RESAMPLES = 400
"""Number of random draws."""

TOO_FEW = f"fewer than {MIN_ITERATIONS} iterations do not show how much it varies"


def interval(
    values: npt.NDArray[np.float64], saving_us: float, error_us: float = 0.0
) -> tuple[float, float]:
    """Return the interval that contains a mean saving with probability `CONFIDENCE`.

    Both ends are in us; they are NaN if the interval is unknown.

    This is a block bootstrap. Blocks of consecutive iterations are drawn at random until they
    contain as many iterations as `values`. The length of a block is the cube root of this number.
    The first iteration follows the last one, so that all iterations are drawn equally often. The
    means of such draws vary as the means of other iterations would, even if an iteration depends
    on the iterations before it.

    Parameters
    ----------
    values
        The time in each iteration to which the saving is proportional, in us.
    saving_us
        The saving per iteration.
    error_us
        The error of the model that predicts the saving. It widens the interval on both sides.

    Examples
    --------
    >>> waits_us = np.array([90.0, 110.0] * 8)
    >>> low, high = interval(waits_us, saving_us=50.0)
    >>> low <= 50.0 <= high
    True
    >>> interval(waits_us[:4], saving_us=50.0)
    (nan, nan)
    """
    count = len(values)
    mean = float(values.mean()) if count else 0.0
    if count < MIN_ITERATIONS or not math.isfinite(mean + saving_us + error_us):
        return math.nan, math.nan
    if mean <= 0:
        return max(0.0, saving_us - error_us), saving_us + error_us
    block_length = max(1, round(count ** (1 / 3)))
    generator = np.random.default_rng(0)  # a constant seed, so that the result is reproducible
    block_starts = generator.integers(0, count, (_RESAMPLES, -(-count // block_length)))
    sums = np.concatenate([[0.0], np.cumsum(np.append(values, values[: block_length - 1]))])
    means = (sums[block_starts + block_length] - sums[block_starts]).mean(axis=1) / block_length
    tail = (1 - CONFIDENCE) / 2
    low, high = (
        float(quantile) / mean * saving_us for quantile in np.quantile(means, (tail, 1 - tail))
    )
    return max(0.0, min(low, saving_us) - error_us), max(high, saving_us) + error_us
