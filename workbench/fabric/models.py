"""Expected times of an allreduce by the textbook's cost models.

R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication
Operations in MPICH" (2005). Parameters are `size` in bytes, the number of ranks `n`,
`gbps` in 10^9 bits per second of one rank's link in one direction, and `latency_us`
per message. All functions return microseconds, 0 for one rank.
"""

from __future__ import annotations

import math


def transfer_us(size: float, gbps: float) -> float:
    """Return the transfer time of `size` bytes on a link."""
    return size * 8 / (gbps * 1e3)


def ring_us(size: float, n: int, gbps: float, latency_us: float = 0.0) -> float:
    """Return 2(n-1) latency + 2(n-1)/n size/bandwidth."""
    return 2 * (n - 1) * latency_us + 2 * (n - 1) / n * transfer_us(size, gbps)


def halving_doubling_us(size: float, n: int, gbps: float, latency_us: float = 0.0) -> float:
    """Return 2 ceil(log2 n) latency + 2(n-1)/n size/bandwidth."""
    steps = math.ceil(math.log2(n)) if n > 1 else 0
    return 2 * steps * latency_us + 2 * (n - 1) / n * transfer_us(size, gbps)


def tree_us(size: float, n: int, gbps: float, latency_us: float = 0.0) -> float:
    """Return about 2 ceil(log2 n) latency + 2 size/bandwidth, for a pipelined tree."""
    if n == 1:
        return 0.0
    return 2 * math.ceil(math.log2(n)) * latency_us + 2 * transfer_us(size, gbps)
