"""The buffers that a training has transferred, and the time of a transfer as a function of size."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workbench.timings.buffers import is_timed, number_buffers, service_times
from workbench.wire import Layout

Floats = npt.NDArray[np.float64]

MIN_BUFFERS = 3
"""Minimum number of buffers from which a time is taken."""
_MARGIN_US = 500.0
"""A collective that was ready this long before a cycle was part of the cycle."""
_FIT_STEPS = 6
"""Number of weighted fits."""
_SMALL_ERROR = 0.01
"""The fit counts relative errors below this one as squares, and larger errors linearly."""
_BURSTS = 24
"""Number of bursts that are tried."""
_MAX_ERROR_RATIO = 0.9
"""A burst is assumed if it reduces the error below this share of the error without a burst."""


class TransferredBuffers:
    """The buffers of the iterations, in the order of their transfers.

    Attributes
    ----------
    size, single, delay, idle, service, copies, unused
        Arrays with a value for each buffer, with times in us: the bytes, whether the buffer has a
        single collective, the time from its possible negotiation to its response, whether nothing
        was transferred before the possible negotiation, the times of the buffer's transfer and of
        its copies, and the time before its transfer in which nothing was transferred.
    split
        Largest number of bytes of a fused buffer, if collectives that were ready were left for
        another buffer; 0 otherwise.
    transfer_sums
        Sum of the transfer times of each iteration, in us.
    """

    def __init__(self, times: Floats, layout: Layout) -> None:
        buffers: list[tuple[float, ...]] = []
        sizes = np.array(layout.sizes_bytes, float)
        largest = 0.0
        # Sizes that buffers would have with the collectives that were left for another buffer.
        needed_bytes = []
        sums = []
        timed = bool(is_timed(layout).all())
        for iteration in times - np.minimum(times.min(axis=(1, 2, 3), keepdims=True), 0.0):
            services = service_times(iteration.astype(np.int64), layout)
            buffer_numbers = number_buffers(iteration[0].astype(np.int64), layout)
            ready = iteration[:, 0].max(axis=0)
            previous_finished = 0.0
            previous_responded = -math.inf
            previous_size = 0.0
            total = 0.0
            unused_from = -math.inf
            for buffer in range(int(buffer_numbers.max()) + 1):
                members = np.flatnonzero(buffer_numbers == buffer)
                leader = members[0]
                first = float(ready[members].min())
                size = float(sizes[members].sum())
                responded, began, ended, finished = iteration[0, 1:, members].max(axis=0)
                copies = began - responded + finished - ended
                service = float(services[leader])
                fused = len(members) > 1
                start, end = (
                    iteration[0, 2:4, leader]
                    if timed
                    else (max(first, previous_finished), finished)
                )
                unused = max(0.0, start - unused_from)
                delay = responded - max(first, previous_finished)
                buffers.append(
                    (size, not fused, delay, first >= previous_finished, service, copies, unused)
                )
                unused_from = end
                if first < previous_responded - _MARGIN_US:
                    needed_bytes.append(previous_size + sizes[members[ready[members].argmin()]])
                if fused:
                    largest = max(largest, size)
                previous_responded = responded
                previous_size = size
                previous_finished = float(finished)
                total += service
            sums.append(total)
        table = np.array(buffers)
        self.size, single, self.delay, idle, self.service, self.copies, self.unused = table.T
        self.single = single > 0
        self.idle = idle > 0
        # If some other buffer was as large, the collectives would have fitted.
        splits = sum(needed > largest for needed in needed_bytes)
        self.split = max(largest, 1.0) if splits >= max(MIN_BUFFERS, 0.05 * len(table)) else 0.0
        self.transfer_sums = np.array(sums)

    def copy_us_per_byte(self, *, single: bool) -> float:
        """Return the time to copy a byte into and out of buffers of one or several collectives."""
        is_included = self.single == single
        if is_included.sum() < MIN_BUFFERS:
            is_included = np.ones(len(is_included), bool)
        return max(0.0, float(np.median(self.copies[is_included] / self.size[is_included])))


@dataclass(frozen=True)
class TransferTime:
    """The time of a transfer, T(S) = fixed_us + S us_per_byte, reduced by a burst after idle time.

    Attributes
    ----------
    fixed_us, us_per_byte
        Time of an empty transfer, and the additional time of a byte, in us.
    burst_us
        The longest idle time of the link, in us, that makes the next transfer shorter (a token
        bucket).
        The transfer is shorter by the idle time, or by the time of all bytes if that is less.
    error
        Mean absolute error, relative to the mean time.
    """

    fixed_us: float
    us_per_byte: float
    burst_us: float
    error: float


def fit_transfers(size: Floats, service_us: Floats, idle_us: Floats) -> TransferTime:
    """Return the time of transfers of different sizes.

    Transfers directly after others show the rate, and transfers after idle time show the burst. A
    single line through both would find a rate that is too low.

    Parameters
    ----------
    size, service_us
        Bytes and time of each transfer; not all sizes are equal.
    idle_us
        Time before each transfer in which nothing was transferred.

    Examples
    --------
    >>> size = np.array([1e6, 2e6, 4e6, 8e6])
    >>> fit = fit_transfers(size, 100.0 + 0.001 * size, np.zeros(4))
    >>> round(fit.fixed_us), round(fit.us_per_byte, 6)
    (100, 0.001)
    """
    plain = _fit(size, service_us, idle_us, 0.0)
    longest = float(service_us.max())
    tried = [
        _fit(size, service_us, idle_us, float(burst_us))
        for burst_us in np.geomspace(longest / 200, longest, _BURSTS)
    ]
    best = min(tried, key=lambda fit: fit.error)
    if best.error < _MAX_ERROR_RATIO * plain.error:
        step = (longest / (longest / 200)) ** (1 / (_BURSTS - 1))
        near = np.linspace(best.burst_us / step, best.burst_us * step, _BURSTS)
        tried = [_fit(size, service_us, idle_us, float(burst_us)) for burst_us in near]
        return min([best, *tried], key=lambda fit: fit.error)
    return plain


def _fit(size: Floats, service_us: Floats, idle_us: Floats, burst_us: float) -> TransferTime:
    """Fit the time of transfers for an assumed burst, by iteratively reweighted least squares."""
    passed = np.minimum(idle_us, burst_us)
    slope = float(np.median(service_us / size))
    fixed = 0.0
    weights = np.ones(len(size))
    for _ in range(_FIT_STEPS):
        full_time_us = service_us + np.minimum(passed, slope * size)
        fixed, slope = _line(size, full_time_us, weights / full_time_us)
        relative_error = np.maximum(np.abs((fixed + slope * size) / full_time_us - 1), _SMALL_ERROR)
        weights = 1 / np.sqrt(relative_error)
    fitted = fixed + slope * size - np.minimum(passed, slope * size)
    error = float(np.abs(fitted - service_us).mean() / service_us.mean())
    return TransferTime(fixed, slope, burst_us, error)


def _line(x: Floats, y: Floats, weights: Floats) -> tuple[float, float]:
    """Return the intercept, at least 0, and the slope of the weighted least squares."""
    slope, intercept = np.polyfit(x, y, 1, w=weights)
    if intercept < 0:
        return 0.0, float((weights**2 * x * y).sum() / (weights**2 * x * x).sum())
    return float(intercept), float(slope)
