"""Iterations in which collectives take much longer than usual after all ranks submitted them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from workbench.timings import noise
from workbench.timings.ring_delays import LEAST_SHARE, RingDelays

LINK_TIMES = 2.0
"""A link is slow if collectives take at least this many times their usual duration..."""
LINK_LEAST = 20
"""...in at least this many iterations..."""
LINK_ALIKE = 0.3
"""...most of which differ by at most this share: a link's rate is steady, a busy core is not."""


def slow_links(ring: RingDelays) -> Iterator[tuple[npt.NDArray[np.intp], float]]:
    """Yield the places of such iterations, and by how much their collectives take longer."""
    found = ring.found
    sizes = found.rows[["bytes", "tensors"]][:, 0]
    for size in np.unique(sizes[ring.warm]):
        same = np.flatnonzero((sizes == size) & ring.warm)
        service, counts_us = found.service_us[same], LEAST_SHARE * ring.iteration_us[same]
        usual = float(np.quantile(service, 0.1))
        longer = np.where(service - usual >= counts_us, service - usual, 0.0)
        least = max(float(counts_us.min()), (LINK_TIMES - 1) * usual)
        counted, end = np.ones(len(same), dtype=bool), -1
        slow = noise.spans(longer[:, np.newaxis], least, counted)
        for first, last in sorted(
            (first, last) for _, _, first, last in slow if last - first >= LINK_LEAST - 1
        ):
            if first <= end:
                continue
            end, places = last, same[first : last + 1]
            excess = found.service_us[places] - usual
            middle = float(np.median(excess))
            if (np.abs(excess - middle) <= LINK_ALIKE * middle).mean() >= noise.OFTEN:
                yield places, middle
