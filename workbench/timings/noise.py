"""What stands out of a noisy series: stretches, single values, and how much noise there is."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

Series = npt.NDArray[np.float64]

LENGTHS = (5, 20, 60)
"""Medians over so many values are looked at: the longer, the smaller what noise allows."""
STRENGTH = 5.0
"""A median stands out from so many times the noise of such medians on..."""
OFTEN = 0.75
"""...where at least this share of its stretch..."""
ALIKE = 0.7
"""...has this share of it or more: a cause repeats itself alike, a busy core does not..."""
LOOSE = 0.5
"""...or this share, where the stretch is longer than a core stays busy by chance."""
_BLOCKS = (8, 40)
_QUANTILES = ((0.75, 1.150), (0.5, 0.674))


def noise(values: Series, length: int = 1) -> Series:
    """Return how much medians of `length` values vary from one to the next, by column.

    The Allan deviation, from quantiles: neither a stretch that stands out nor
    single values move it, and noise that lasts (another process on a rank's
    core) is in it. Where there are too few values, it is told from shorter
    medians.

    Parameters
    ----------
    values
        A column for each series.
    """
    blocks = len(values) // length
    if blocks < _BLOCKS[0] and length > 1:
        shorter = max((one for one in LENGTHS if one < length), default=1)
        # a median's deviation is 1.25 of the mean's, where the noise has no memory
        scale = 1.25 / np.sqrt(length) if shorter == 1 else 1.0
        return noise(values, shorter) * scale
    parts = values[: blocks * length].reshape(blocks, length, -1)
    changes = np.abs(np.diff(np.median(parts, axis=1), axis=0))
    if not len(changes):
        return np.zeros(values.shape[1])
    # of many, one stretch has few changes: then noise that comes and goes counts as well
    quantile, deviations = _QUANTILES[0] if blocks >= _BLOCKS[1] else _QUANTILES[1]
    return np.asarray(np.quantile(changes, quantile, axis=0) / deviations / np.sqrt(2))


def throughout(values: Series, least: float) -> npt.NDArray[np.bool_]:
    """Return which columns stand out from first to last, by `least` or more."""
    lengths = [length for length in LENGTHS if length <= len(values)]
    if not lengths:
        return np.zeros(values.shape[1], dtype=bool)
    middle = np.median(values, axis=0)
    share = LOOSE if len(values) >= LENGTHS[-1] else ALIKE
    often = (values >= share * middle).mean(axis=0) >= OFTEN
    strong = middle >= np.maximum(least, STRENGTH * noise(values, lengths[-1]))
    return np.asarray(often & strong)


def stretches(
    values: Series, least: float, counted: npt.NDArray[np.bool_]
) -> Iterator[tuple[float, int, int, int]]:
    """Return strength, column, and first and last place of what stands out by `least` or more.

    Parameters
    ----------
    counted
        Which rows tell how much noise there is.
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
            for part in np.split(places, np.flatnonzero(np.diff(places) > length) + 1):
                begin, end = part[0], part[-1] + length
                found = _ends(values[begin:end, column])
                if found is not None:
                    first, last, middle = found
                    strength = middle * np.sqrt(last - first + 1)
                    yield strength, int(column), int(begin + first), int(begin + last)


def _ends(values: Series) -> tuple[int, int, float] | None:
    """Return where a stretch begins and ends: windows reach beyond it by up to their half."""
    least = ALIKE * float(np.median(values))
    near = np.pad(values, LENGTHS[0] // 2, mode="edge")
    high = np.median(sliding_window_view(near, LENGTHS[0]), axis=1) >= least
    inside = np.flatnonzero(high & (values >= least))
    if not len(inside):
        return None
    stretch = values[inside[0] : inside[-1] + 1]
    middle = float(np.median(stretch))
    share = LOOSE if len(stretch) >= LENGTHS[-1] else ALIKE
    if len(stretch) < LENGTHS[0] or (stretch >= share * middle).mean() < OFTEN:
        return None
    return int(inside[0]), int(inside[-1]), middle
