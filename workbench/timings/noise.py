"""Outliers of noisy series, and the noise of a series."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

Series = npt.NDArray[np.float64]

LENGTHS = (5, 20, 60)
"""Lengths of the medians that are tested; longer medians have less noise."""
STRENGTH = 5.0
"""A median is an outlier if it is at least this many times the noise of such medians."""
OFTEN = 0.75
"""Least share of the values in an outlier's span that must be high."""
ALIKE = 0.7
"""A value is high from this share of the span's median on: a cause repeats with the same size,
whereas a busy core delays irregularly."""
LOOSE = 0.5
"""The same for spans that are longer than a core usually stays busy."""
_BLOCKS = (8, 40)
_QUANTILES = ((0.75, 1.150), (0.5, 0.674))


def noise(values: Series, length: int = 1) -> Series:
    """Return the variation between consecutive medians of `length` values, by column.

    This is the Allan deviation, computed from quantiles: single outliers and a span of them do
    not affect it, but lasting noise does, such as another process on a rank's core. With too
    few values it is estimated from shorter medians.
    """
    blocks = len(values) // length
    if blocks < _BLOCKS[0] and length > 1:
        shorter = max((one for one in LENGTHS if one < length), default=1)
        # without autocorrelation, a median deviates 1.25 times as much as a mean
        scale = 1.25 / np.sqrt(length) if shorter == 1 else 1.0
        return noise(values, shorter) * scale
    parts = values[: blocks * length].reshape(blocks, length, -1)
    changes = np.abs(np.diff(np.median(parts, axis=1), axis=0))
    if not len(changes):
        return np.zeros(values.shape[1])
    # among many changes, one span has few: a higher quantile then includes occasional noise
    quantile, deviations = _QUANTILES[0] if blocks >= _BLOCKS[1] else _QUANTILES[1]
    return np.asarray(np.quantile(changes, quantile, axis=0) / deviations / np.sqrt(2))


def are_always_high(values: Series, least: float) -> npt.NDArray[np.bool_]:
    """Return which columns are outliers in all rows, by `least` or more."""
    lengths = [length for length in LENGTHS if length <= len(values)]
    if not lengths:
        return np.zeros(values.shape[1], dtype=bool)
    middle = np.median(values, axis=0)
    share = LOOSE if len(values) >= LENGTHS[-1] else ALIKE
    often = (values >= share * middle).mean(axis=0) >= OFTEN
    strong = middle >= np.maximum(least, STRENGTH * noise(values, lengths[-1]))
    return np.asarray(often & strong)


def spans(
    values: Series, least: float, counted: npt.NDArray[np.bool_]
) -> Iterator[tuple[float, int, int, int]]:
    """Yield strength, column, first and last row of the spans of outliers by `least` or more.

    The noise is estimated from the rows `counted`.
    """
    for length in LENGTHS:
        if length > len(values):
            return
        enough = np.maximum(least, STRENGTH * noise(values[counted], length))
        # a median is high where more than half of its values are
        total = np.cumsum(np.pad(values >= enough, ((1, 0), (0, 0))), axis=0)
        high = np.asarray(2 * (total[length:] - total[:-length]) > length)
        for column in np.flatnonzero(high.any(axis=0)):
            places = np.flatnonzero(high[:, column])
            for run in np.split(places, np.flatnonzero(np.diff(places) > length) + 1):
                begin, end = run[0], run[-1] + length
                found = _ends(values[begin:end, column])
                if found is not None:
                    first, last, middle = found
                    strength = middle * np.sqrt(last - first + 1)
                    yield strength, int(column), int(begin + first), int(begin + last)


def _ends(values: Series) -> tuple[int, int, float] | None:
    """Return the ends and the median of a span, which its windows exceed by up to half of them."""
    least = ALIKE * float(np.median(values))
    near = np.pad(values, LENGTHS[0] // 2, mode="edge")
    high = np.median(sliding_window_view(near, LENGTHS[0]), axis=1) >= least
    inside = np.flatnonzero(high & (values >= least))
    if not len(inside):
        return None
    span = values[inside[0] : inside[-1] + 1]
    middle = float(np.median(span))
    share = LOOSE if len(span) >= LENGTHS[-1] else ALIKE
    if len(span) < LENGTHS[0] or (span >= share * middle).mean() < OFTEN:
        return None
    return int(inside[0]), int(inside[-1]), middle
