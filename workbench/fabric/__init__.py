"""The performance of links: nominal, by cost models, and as measured.

- `nominal`: published rates, and those of a VM's links; `hops`: the hops of a job's ring
- `models`: cost models of collectives, and what a protocol leaves of a link's rate
- `calibration`: measures a sweep of allreduces, `fit` fits lines to it, `stored` keeps it
- `matrix`: measures the bandwidth of each pair of VMs
"""

from workbench.fabric.fit import FittedFabric, fit
from workbench.fabric.hops import Hop, ring_hops, weakest_hop
from workbench.fabric.matrix import BandwidthMatrix
from workbench.fabric.models import (
    all_gather_us,
    all_to_all_us,
    broadcast_us,
    busbw_factor,
    halving_doubling_us,
    hierarchical_us,
    rdma_efficiency,
    reduce_scatter_us,
    ring_us,
    tcp_efficiency,
    tree_us,
)
from workbench.fabric.nominal import Bandwidth, landscape

__all__ = [
    "Bandwidth",
    "BandwidthMatrix",
    "FittedFabric",
    "Hop",
    "all_gather_us",
    "all_to_all_us",
    "broadcast_us",
    "busbw_factor",
    "fit",
    "halving_doubling_us",
    "hierarchical_us",
    "landscape",
    "rdma_efficiency",
    "reduce_scatter_us",
    "ring_hops",
    "ring_us",
    "tcp_efficiency",
    "tree_us",
    "weakest_hop",
]
