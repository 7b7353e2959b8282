"""Times of collectives by standard cost models, and the payload's share of a link's rate.

The models are from R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective
Communication Operations in MPICH" (2005). They are alpha-beta models: a latency for each message,
and the bytes divided by the bandwidth. All return microseconds, and 0 for one rank. Their
parameters are:

- `size`: bytes of the buffer of one rank, as in nccl-tests: before an allreduce, a broadcast, a
  reduce-scatter or an all-to-all, and after an all-gather
- `n`: number of ranks
- `gbps`: rate of one rank's link in one direction, in 10^9 bits per second
- `latency_us`: latency of each message

As in nccl-tests, the algorithm bandwidth (algbw) is `size` divided by the time, and the bus
bandwidth (busbw) is algbw times `busbw_factor`. The bus bandwidth is the rate of the slowest link,
for any number of ranks.
"""

from __future__ import annotations

import math
from typing import Literal

from workbench.errors import UsageError

Kind = Literal["allreduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast", "reduce"]

TCP_HEADER_BYTES = 52
"""IPv4 20, TCP 20, and TCP's timestamps 12 (RFC 791, 9293, 7323); part of the MTU."""
ETHERNET_BYTES = 38
"""Bytes around each packet: preamble 8, header 14, checksum 4, gap 12 (IEEE 802.3)."""
ROCE_BYTES = 44 + ETHERNET_BYTES
"""RoCE v2: IPv4 20, UDP 8, InfiniBand's base header 12 and checksum 4 (IBTA, Annex A17)."""
INFINIBAND_BYTES = 26
"""Local header 8, base header 12, two checksums 4 and 2 (IBTA, volume 1)."""


def transfer_us(size: float, gbps: float) -> float:
    """Return the transfer time of `size` bytes on a link, in microseconds.

    Raises
    ------
    UsageError
        The size is negative or infinite, or the rate is not positive.
    """
    if not (size >= 0 and gbps > 0 and math.isfinite(size)):
        raise UsageError(
            f"size={size:g}, gbps={gbps:g}: not a size and a rate. Give bytes of 0 or more, and a "
            "positive rate in Gbit/s."
        )
    return size * 8 / (gbps * 1e3)


def ring_us(size: float, n: int, gbps: float, latency_us: float = 0.0) -> float:
    """Return the time of a ring allreduce.

    It is 2 * (n-1) * latency + 2 * (n-1)/n * size / bandwidth.

    Examples
    --------
    >>> ring_us(100e6, n=4, gbps=25, latency_us=10)
    48060.0
    """
    return 2 * reduce_scatter_us(size, n, gbps, latency_us)


def halving_doubling_us(size: float, n: int, gbps: float, latency_us: float = 0.0) -> float:
    """Return the time of an allreduce by recursive halving and doubling.

    It is 2 * ceil(log2(n)) * latency + 2 * (n-1)/n * size / bandwidth.

    Examples
    --------
    >>> halving_doubling_us(100e6, n=4, gbps=25, latency_us=10)
    48040.0
    """
    return 2 * _steps(n, latency_us) * latency_us + ring_us(size, n, gbps)


def tree_us(size: float, n: int, gbps: float, latency_us: float = 0.0) -> float:
    """Return the time of an allreduce on a pipelined tree.

    It is about 2 * ceil(log2(n)) * latency + 2 * size / bandwidth.
    """
    return 2 * broadcast_us(size, n, gbps, latency_us)


def hierarchical_us(
    size: float,
    vms: int,
    per_vm: int,
    within_gbps: float,
    between_gbps: float,
    *,
    within_us: float = 0.0,
    between_us: float = 0.0,
) -> float:
    """Return the time of an allreduce on `vms` VMs with `per_vm` ranks each.

    First, the ranks of each VM reduce-scatter. Then, each rank allreduces its share with its peers
    on the other VMs. Finally, the ranks of each VM all-gather.

    Parameters
    ----------
    size
        Bytes of the buffer of one rank.
    vms
        Number of VMs.
    per_vm
        Number of ranks on each VM.
    within_gbps
        Rate between the ranks of a VM, such as the rate of NVLink, in Gbit/s.
    between_gbps
        Rate of one rank's link to other VMs, in Gbit/s.
    within_us, between_us
        Latencies of messages within a VM and between VMs, in microseconds.

    Examples
    --------
    >>> round(hierarchical_us(100e6, vms=2, per_vm=8, within_gbps=2400, between_gbps=25))
    4583
    """
    within_vm_us = 2 * reduce_scatter_us(size, per_vm, within_gbps, within_us)
    return within_vm_us + ring_us(size / per_vm, vms, between_gbps, between_us)


def reduce_scatter_us(size: float, n: int, gbps: float, latency_us: float = 0.0) -> float:
    """Return the time of a reduce-scatter: (n-1) * latency + (n-1)/n * size / bandwidth.

    An all-gather takes the same time.
    """
    _steps(n, latency_us)
    return (n - 1) * latency_us + (n - 1) / n * transfer_us(size, gbps)


all_gather_us = reduce_scatter_us
all_to_all_us = reduce_scatter_us
"""The time is the same because each rank exchanges size/n with every other rank."""


def broadcast_us(size: float, n: int, gbps: float, latency_us: float = 0.0) -> float:
    """Return the time of a broadcast on a pipelined tree.

    It is about ceil(log2(n)) * latency + size / bandwidth.
    """
    steps = _steps(n, latency_us)
    return steps * latency_us + transfer_us(size, gbps) if steps else 0.0


def busbw_factor(kind: Kind, n: int) -> float:
    """Return the factor from algorithm bandwidth to bus bandwidth, as in nccl-tests.

    Raises
    ------
    UsageError
        There is no such collective, or `n` is less than 1.

    Examples
    --------
    >>> busbw_factor("allreduce", 4)
    1.5
    """
    _steps(n)
    share = (n - 1) / n
    factors = {"allreduce": 2 * share, "broadcast": 1.0, "reduce": 1.0}
    factors |= dict.fromkeys(("reduce-scatter", "all-gather", "all-to-all"), share)
    if kind not in factors:
        raise UsageError(f"{kind!r}: no such collective. Use one of {', '.join(factors)}.")
    return factors[kind]


def tcp_efficiency(mtu: int = 1500, framing_bytes: int = ETHERNET_BYTES) -> float:
    """Return the payload's share of a link's rate under TCP.

    Parameters
    ----------
    mtu
        Maximum packet size in bytes, including the headers of IP and TCP.
    framing_bytes
        Bytes around each packet that the link's rate includes. The shaped links of
        `workbench.testbed` count only Ethernet's header of 14 bytes.

    Examples
    --------
    >>> round(tcp_efficiency(1500), 3)
    0.941
    """
    if mtu <= TCP_HEADER_BYTES:
        raise UsageError(f"mtu={mtu}: no room for TCP's headers. Give an MTU such as 1500 or 9000.")
    return (mtu - TCP_HEADER_BYTES) / (mtu + framing_bytes)


def rdma_efficiency(mtu: int = 4096, link_layer: str = "Ethernet") -> float:
    """Return the payload's share of a link's rate under RDMA.

    Parameters
    ----------
    mtu
        RDMA's MTU, which is the payload of a packet in bytes: 256 to 4096.
    link_layer
        `Nic.link_layer`: ``"Ethernet"`` for RoCE v2, or ``"InfiniBand"``.

    Examples
    --------
    >>> round(rdma_efficiency(4096), 3)
    0.98
    """
    if mtu < 1:
        raise UsageError(f"mtu={mtu}: not a payload. Give RDMA's MTU, such as 1024 or 4096.")
    return mtu / (mtu + (INFINIBAND_BYTES if link_layer == "InfiniBand" else ROCE_BYTES))


def _steps(n: int, latency_us: float = 0.0) -> int:
    """Return ceil(log2(n)), the number of steps; raise an error for a wrong `n` or latency."""
    if not 1 <= n < math.inf:
        raise UsageError(f"n={n}: not a number of ranks. Give 1 or more.")
    if not 0 <= latency_us < math.inf:
        raise UsageError(f"latency_us={latency_us}: not a latency. Give 0 or more microseconds.")
    return math.ceil(math.log2(n))
