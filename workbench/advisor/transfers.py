"""The buffers that a training has transferred, and the time of a transfer by its size."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workbench.timings.buffers import is_timed, number_buffers, service_times
from workbench.wire import Layout

Floats = npt.NDArray[np.float64]

LEAST = 3
"""Least number of buffers from which a time is taken."""
_MARGIN_US = 500.0
"""A collective that was ready so long before a cycle was part of it."""
_REWEIGHTED = 6
_SMALL_ERROR = 0.01
"""Relative errors below this one count as squares, larger ones as they are."""
_BURSTS = 24
"""How many bursts are tried."""
_BETTER = 0.9
"""A burst is assumed if it makes the error smaller than this share of the one without."""


class Buffers:
    """The buffers of the iterations, in the order of their transfers.

    Attributes
    ----------
    size, single, delay, idle, service, copies, unused
        Of each buffer: bytes, whether it has one collective, the time from when it could be
        negotiated to its response, whether nothing was transferred before that, the time of its
        transfer and of its copies, and for how long nothing was transferred before it.
    split
        Most bytes of a fused buffer, if collectives that were ready were left for another; 0
        otherwise.
    transfer_sums
        Sum of the transfers of each iteration.
    """

    def __init__(self, times: Floats, layout: Layout) -> None:
        columns: list[tuple[float, ...]] = []
        sizes = np.array(layout.sizes_bytes, float)
        largest = 0.0
        left = []  # the least size of a buffer that these would not have fitted into
        sums = []
        timed = bool(is_timed(layout).all())
        for own in times - np.minimum(times.min(axis=(1, 2, 3), keepdims=True), 0.0):
            services = service_times(own.astype(np.int64), layout)
            number = number_buffers(own[0].astype(np.int64), layout)
            ready, free, previous, total = own[:, 0].max(axis=0), 0.0, None, 0.0
            unused_from = -math.inf
            for buffer in range(int(number.max()) + 1):
                inside = np.flatnonzero(number == buffer)
                one = inside[0]
                first, size = float(ready[inside].min()), float(sizes[inside].sum())
                responded, began, ended, finished = own[0, 1:, inside].max(axis=0)
                copies = began - responded + finished - ended
                service, fused = float(services[one]), len(inside) > 1
                start, end = own[0, 2:4, one] if timed else (max(first, free), finished)
                unused = max(0.0, start - unused_from)
                delay = responded - max(first, free)
                columns.append((size, not fused, delay, first >= free, service, copies, unused))
                unused_from = end
                if previous is not None and first < previous[0] - _MARGIN_US:
                    left.append(previous[1] + sizes[inside[ready[inside].argmin()]])
                largest = max(largest, size * fused)
                previous, free, total = (responded, size), float(finished), total + service
            sums.append(total)
        table = np.array(columns)
        self.size, self.delay, self.service, self.copies, self.unused = table[:, [0, 2, 4, 5, 6]].T
        self.single, self.idle = table[:, 1] > 0, table[:, 3] > 0
        # a larger buffer elsewhere shows that they would have fitted
        splits = sum(needed > largest for needed in left)
        self.split = max(largest, 1.0) if splits >= max(LEAST, 0.05 * len(table)) else 0.0
        self.transfer_sums = np.array(sums)

    def copy_us_per_byte(self, *, single: bool) -> float:
        """Return the time to copy a byte into buffers and out of them, of one or of several."""
        chosen = self.single == single
        if chosen.sum() < LEAST:
            chosen = np.ones(len(chosen), bool)
        return max(0.0, float(np.median(self.copies[chosen] / self.size[chosen])))


@dataclass(frozen=True)
class TransferTime:
    """A line, T(S) = fixed + S per byte, less what a rate limit lets pass at once when idle.

    Attributes
    ----------
    fixed_us, us_per_byte
        Time of an empty transfer, and the additional time of a byte.
    burst_us
        The longest idle time of the link that makes the next transfer shorter (a token bucket):
        by itself, or by the time of all bytes if that is less.
    error
        Mean absolute error, relative to the mean time.
    """

    fixed_us: float
    us_per_byte: float
    burst_us: float
    error: float


def fit_transfers(size: Floats, service_us: Floats, idle_us: Floats) -> TransferTime:
    """Return the time of transfers of different sizes.

    Transfers that follow others at once show the rate, and those after idle time the burst. One
    line through both would find a rate that is too low.

    Parameters
    ----------
    size, service_us
        Bytes and time of each transfer; not all sizes are equal.
    idle_us
        For how long nothing was transferred before it.
    """
    plain = _fit(size, service_us, idle_us, 0.0)
    longest = float(service_us.max())
    tried = [
        _fit(size, service_us, idle_us, float(burst_us))
        for burst_us in np.geomspace(longest / 200, longest, _BURSTS)
    ]
    best = min(tried, key=lambda one: one.error)
    if best.error < _BETTER * plain.error:
        step = (longest / (longest / 200)) ** (1 / (_BURSTS - 1))
        near = np.linspace(best.burst_us / step, best.burst_us * step, _BURSTS)
        tried = [_fit(size, service_us, idle_us, float(burst_us)) for burst_us in near]
        return min([best, *tried], key=lambda one: one.error)
    return plain


def _fit(size: Floats, service_us: Floats, idle_us: Floats, burst_us: float) -> TransferTime:
    passed = np.minimum(idle_us, burst_us)
    slope, fixed = float(np.median(service_us / size)), 0.0
    weights = np.ones(len(size))
    for _ in range(_REWEIGHTED):
        whole = service_us + np.minimum(passed, slope * size)
        fixed, slope = _line(size, whole, weights / whole)
        wrong = np.maximum(np.abs((fixed + slope * size) / whole - 1), _SMALL_ERROR)
        weights = 1 / np.sqrt(wrong)
    fitted = fixed + slope * size - np.minimum(passed, slope * size)
    error = float(np.abs(fitted - service_us).mean() / service_us.mean())
    return TransferTime(fixed, slope, burst_us, error)


def _line(x: Floats, y: Floats, weights: Floats) -> tuple[float, float]:
    """Return the intercept, at least 0, and the slope of the weighted least squares."""
    slope, intercept = np.polyfit(x, y, 1, w=weights)
    if intercept < 0:
        return 0.0, float((weights**2 * x * y).sum() / (weights**2 * x * x).sum())
    return float(intercept), float(slope)
