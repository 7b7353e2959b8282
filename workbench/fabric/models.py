"""Expected times of collectives by the textbook's cost models, and what a link can carry.

R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication
Operations in MPICH" (2005). Parameters are `size` in bytes, the number of ranks `n`,
`gbps` in 10^9 bits per second of one rank's link in one direction, and `latency_us`
per message. All models return microseconds, 0 for one rank.

`size` is the buffer of one rank before an allreduce, a broadcast, a reduce-scatter or an
all-to-all, and after an all-gather, as in nccl-tests. There, the algorithm bandwidth (algbw) is
`size` over the time, and the bus bandwidth (busbw) is algbw times `busbw_factor`: the rate of the
slowest link, whatever the number of ranks.
"""

from __future__ import annotations

import math
from typing import Literal

from workbench.errors import UsageError

Kind = Literal["allreduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast", "reduce"]

TCP_HEADER_BYTES = 52
"""IPv4 20, TCP 20, and TCP's timestamps 12 (RFC 791, 9293, 7323); part of the MTU."""
ETHERNET_BYTES = 38
"""Around each packet: preamble 8, header 14, checksum 4, gap 12 (IEEE 802.3)."""
ROCE_BYTES = 44 + ETHERNET_BYTES
"""RoCE v2: IPv4 20, UDP 8, InfiniBand's base header 12 and checksum 4 (IBTA, Annex A17)."""
INFINIBAND_BYTES = 26
"""Local header 8, base header 12, two checksums 4 and 2 (IBTA, volume 1)."""


def transfer_us(size: float, gbps: float) -> float:
    """Return the transfer time of `size` bytes on a link."""
    if not (size >= 0 and gbps > 0 and math.isfinite(size)):
        raise UsageError(
            f"size={size:g}, gbps={gbps:g}: not a size and a rate. Give bytes of 0 or more, and a "
            "positive rate in Gbit/s."
        )
    return size * 8 / (gbps * 1e3)


def ring_us(size: float, n: int, gbps: float, latency_us: float = 0.0) -> float:
    """Return 2(n-1) latency + 2(n-1)/n size/bandwidth."""
    return 2 * reduce_scatter_us(size, n, gbps, latency_us)


def halving_doubling_us(size: float, n: int, gbps: float, latency_us: float = 0.0) -> float:
    """Return 2 ceil(log2 n) latency + 2(n-1)/n size/bandwidth."""
    return 2 * _steps(n, latency_us) * latency_us + ring_us(size, n, gbps)


def tree_us(size: float, n: int, gbps: float, latency_us: float = 0.0) -> float:
    """Return about 2 ceil(log2 n) latency + 2 size/bandwidth, for a pipelined tree."""
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
    """Return the time of an allreduce on `vms` VMs of `per_vm` ranks each.

    The ranks of each VM reduce-scatter, each rank then allreduces its share with its peers on
    the other VMs, and the ranks of each VM all-gather. `within_gbps` is the rate between the
    ranks of a VM (NVLink), `between_gbps` that of one rank's link to other VMs.
    """
    inside = 2 * reduce_scatter_us(size, per_vm, within_gbps, within_us)
    return inside + ring_us(size / per_vm, vms, between_gbps, between_us)


def reduce_scatter_us(size: float, n: int, gbps: float, latency_us: float = 0.0) -> float:
    """Return (n-1) latency + (n-1)/n size/bandwidth; an all-gather takes as long."""
    _steps(n, latency_us)
    return (n - 1) * latency_us + (n - 1) / n * transfer_us(size, gbps)


all_gather_us = reduce_scatter_us
all_to_all_us = reduce_scatter_us
"""Each rank exchanges size/n with every other rank, so the time is the same."""


def broadcast_us(size: float, n: int, gbps: float, latency_us: float = 0.0) -> float:
    """Return about ceil(log2 n) latency + size/bandwidth, for a pipelined tree."""
    steps = _steps(n, latency_us)
    return steps * latency_us + transfer_us(size, gbps) if steps else 0.0


def busbw_factor(kind: Kind, n: int) -> float:
    """Return what nccl-tests multiplies algbw by to obtain busbw."""
    _steps(n)
    share = (n - 1) / n
    factors = {"allreduce": 2 * share, "broadcast": 1.0, "reduce": 1.0}
    factors |= dict.fromkeys(("reduce-scatter", "all-gather", "all-to-all"), share)
    if kind not in factors:
        raise UsageError(f"{kind!r}: no such collective. Use one of {', '.join(factors)}.")
    return factors[kind]


def tcp_efficiency(mtu: int = 1500, framing_bytes: int = ETHERNET_BYTES) -> float:
    """Return the share of a link's rate that is payload under TCP: 0.941 at an MTU of 1500.

    `framing_bytes` are those around each packet that the rate includes. The shaped links of
    `workbench.testbed` count only the header of Ethernet, 14.
    """
    if mtu <= TCP_HEADER_BYTES:
        raise UsageError(f"mtu={mtu}: no room for TCP's headers. Give an MTU such as 1500 or 9000.")
    return (mtu - TCP_HEADER_BYTES) / (mtu + framing_bytes)


def rdma_efficiency(mtu: int = 4096, link_layer: str = "Ethernet") -> float:
    """Return the share of a link's rate that is payload under RDMA: 0.980 for RoCE v2 at 4096.

    `mtu` is RDMA's own, the payload of a packet: 256 to 4096; `link_layer` is that of a `Nic`.
    """
    if mtu < 1:
        raise UsageError(f"mtu={mtu}: not a payload. Give RDMA's MTU, such as 1024 or 4096.")
    return mtu / (mtu + (INFINIBAND_BYTES if link_layer == "InfiniBand" else ROCE_BYTES))


def _steps(n: int, latency_us: float = 0.0) -> int:
    """Return ceil(log2 n); raise an error for a wrong number of ranks or latency."""
    if not 1 <= n < math.inf:
        raise UsageError(f"n={n}: not a number of ranks. Give 1 or more.")
    if not 0 <= latency_us < math.inf:
        raise UsageError(f"latency_us={latency_us}: not a latency. Give 0 or more microseconds.")
    return math.ceil(math.log2(n))
