"""Outliers of noisy series, and the noise of a series."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

Series = npt.NDArray[np.float64]

LENGTHS = (5, 20, 60)
"""Numbers of values of the medians that are tested; the median of more values has less noise."""
MIN_STRENGTH = 5.0
"""A median is an outlier if it is at least this many times the noise of medians of its length."""
MIN_HIGH_SHARE = 0.75
"""Minimum share of high values in the span of an outlier."""
SIMILARITY = 0.7
"""A value is high if it is at least this share of the span's median. A lasting cause delays by the
same time again and again, whereas a busy core delays irregularly."""
LONG_SPAN_SIMILARITY = 0.5
"""The similarity in spans that are longer than a core usually stays busy."""
_MIN_BLOCKS = 8
"""Minimum number of medians for an estimate of the noise."""
_MANY_BLOCKS = 40
"""Minimum number of medians for the use of the higher quantile."""
_HIGHER_QUANTILE = (0.75, 1.150)
"""A quantile of the absolute values of normal noise, and its size in standard deviations."""
_MEDIAN_QUANTILE = (0.5, 0.674)


def noise(values: Series, length: int = 1) -> Series:
    """Return the variation between consecutive medians of `length` values, by column.

    This is the Allan deviation, computed from quantiles. Single outliers and one span of outliers
    do not affect it, but lasting noise does, such as another process on a rank's core. With too
    few values, the noise is estimated from shorter medians.

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> series = random.normal(100.0, 2.0, (400, 1))
    >>> series[50:70] += 30.0  # a span of outliers
    >>> noise(series).round(1).tolist()
    [2.0]
    """
    blocks = len(values) // length
    if blocks < _MIN_BLOCKS and length > 1:
        shorter = max((candidate for candidate in LENGTHS if candidate < length), default=1)
        # without autocorrelation, a median deviates 1.25 times as much as a mean
        scale = 1.25 / np.sqrt(length) if shorter == 1 else 1.0
        return noise(values, shorter) * scale
    parts = values[: blocks * length].reshape(blocks, length, -1)
    changes = np.abs(np.diff(np.median(parts, axis=1), axis=0))
    if not len(changes):
        return np.zeros(values.shape[1])
    # One span of outliers causes few changes. So if there are many changes, a higher quantile can
    # be used, which includes occasional noise.
    quantile, deviations = _HIGHER_QUANTILE if blocks >= _MANY_BLOCKS else _MEDIAN_QUANTILE
    return np.asarray(np.quantile(changes, quantile, axis=0) / deviations / np.sqrt(2))


def are_always_high(values: Series, threshold: float) -> npt.NDArray[np.bool_]:
    """Return a mask of the columns that are outliers in all rows, by `threshold` or more."""
    lengths = [length for length in LENGTHS if length <= len(values)]
    if not lengths:
        return np.zeros(values.shape[1], dtype=bool)
    medians = np.median(values, axis=0)
    share = LONG_SPAN_SIMILARITY if len(values) >= LENGTHS[-1] else SIMILARITY
    is_often_high = (values >= share * medians).mean(axis=0) >= MIN_HIGH_SHARE
    is_strong = medians >= np.maximum(threshold, MIN_STRENGTH * noise(values, lengths[-1]))
    return np.asarray(is_often_high & is_strong)


def spans(
    values: Series, threshold: float, counted: npt.NDArray[np.bool_]
) -> Iterator[tuple[float, int, int, int]]:
    """Yield strength, column, first row and last row of each span of outliers.

    `threshold` is the minimum size of outliers, which must also exceed the noise. `counted` is a
    mask of the rows that the noise is estimated from.
    """
    for length in LENGTHS:
        if length > len(values):
            return
        limit = np.maximum(threshold, MIN_STRENGTH * noise(values[counted], length))
        # a median is high where more than half of its values are
        total = np.cumsum(np.pad(values >= limit, ((1, 0), (0, 0))), axis=0)
        high = np.asarray(2 * (total[length:] - total[:-length]) > length)
        for column in np.flatnonzero(high.any(axis=0)):
            starts = np.flatnonzero(high[:, column])
            for group in np.split(starts, np.flatnonzero(np.diff(starts) > length) + 1):
                begin = group[0]
                end = group[-1] + length
                span = _ends(values[begin:end, column])
                if span is not None:
                    first, last, middle = span
                    strength = middle * np.sqrt(last - first + 1)
                    yield strength, int(column), int(begin + first), int(begin + last)


def _ends(values: Series) -> tuple[int, int, float] | None:
    """Return the first row, the last row and the median of a span; None if it is no outlier.

    `values` are the rows of all windows whose median is high. These windows extend beyond the span
    by up to half of their length.
    """
    threshold = SIMILARITY * float(np.median(values))
    near = np.pad(values, LENGTHS[0] // 2, mode="edge")
    high = np.median(sliding_window_view(near, LENGTHS[0]), axis=1) >= threshold
    inside = np.flatnonzero(high & (values >= threshold))
    if not len(inside):
        return None
    span = values[inside[0] : inside[-1] + 1]
    middle = float(np.median(span))
    share = LONG_SPAN_SIMILARITY if len(span) >= LENGTHS[-1] else SIMILARITY
    if len(span) < LENGTHS[0] or (span >= share * middle).mean() < MIN_HIGH_SHARE:
        return None
    return int(inside[0]), int(inside[-1]), middle
