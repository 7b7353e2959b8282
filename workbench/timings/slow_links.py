"""Finds iterations with slow collectives: much longer than usual after all ranks submitted them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from workbench.timings import noise
from workbench.timings.ring_delays import MIN_SHARE, RingDelays

MIN_RATIO = 2.0
"""Minimum ratio of the duration of collectives on a slow link to their usual duration."""
MIN_ITERATIONS = 20
"""Minimum number of iterations with slow collectives."""
MAX_DEVIATION = 0.3
"""Maximum share by which most of these iterations differ from their median. The rate of a link is
steady, whereas a busy core delays irregularly."""


def slow_links(ring: RingDelays) -> Iterator[tuple[npt.NDArray[np.intp], float]]:
    """Yield the indices of the iterations of each span, and how much longer its collectives take.

    The time is in microseconds.
    """
    delays = ring.lateness
    sizes = delays.rows[["bytes", "tensors"]][:, 0]
    for size in np.unique(sizes[ring.warm]):
        same = np.flatnonzero((sizes == size) & ring.warm)
        service = delays.service_us[same]
        min_excess_us = MIN_SHARE * ring.iteration_us[same]
        usual = float(np.quantile(service, 0.1))
        longer = np.where(service - usual >= min_excess_us, service - usual, 0.0)
        threshold = max(float(min_excess_us.min()), (MIN_RATIO - 1) * usual)
        counted = np.ones(len(same), dtype=bool)
        end = -1
        slow = noise.spans(longer[:, np.newaxis], threshold, counted)
        for first, last in sorted(
            (first, last) for _, _, first, last in slow if last - first >= MIN_ITERATIONS - 1
        ):
            if first <= end:
                continue
            end = last
            indices = same[first : last + 1]
            excess = delays.service_us[indices] - usual
            middle = float(np.median(excess))
            if (np.abs(excess - middle) <= MAX_DEVIATION * middle).mean() >= noise.MIN_HIGH_SHARE:
                yield indices, middle
