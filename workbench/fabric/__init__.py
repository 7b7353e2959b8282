"""The performance of links: nominal, by cost models, and as measured.

- `nominal`: published rates, and those of a VM's links; `hops`: the hops of a job's ring
- `models`: cost models of collectives, and what a protocol leaves of a link's rate
- `calibration`: measures a sweep of allreduces, `fit` fits lines to it, `stored` keeps it
- `matrix`: measures the bandwidth of each pair of VMs
- `planning`: what a training will cost before it runs, with the formulas in `plan_figures` and
  the result in `plan_record`; `model_size` measures the model for it, and `quantities` reads and
  writes its numbers
- `batch_size`: the largest batch that fits into memory, by trying
- `overlap`: simulates an iteration with these
"""

from workbench.fabric.batch_size import largest_batch
from workbench.fabric.fit import FittedFabric, fit
from workbench.fabric.hops import Hop, ring_hops, weakest_hop
from workbench.fabric.matrix import BandwidthMatrix
from workbench.fabric.model_size import ModelSize, measure_model
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
from workbench.fabric.plan_record import Plan
from workbench.fabric.planning import plan

__all__ = [
    "Bandwidth",
    "BandwidthMatrix",
    "FittedFabric",
    "Hop",
    "ModelSize",
    "Plan",
    "all_gather_us",
    "all_to_all_us",
    "broadcast_us",
    "busbw_factor",
    "fit",
    "halving_doubling_us",
    "hierarchical_us",
    "landscape",
    "largest_batch",
    "measure_model",
    "plan",
    "rdma_efficiency",
    "reduce_scatter_us",
    "ring_hops",
    "ring_us",
    "tcp_efficiency",
    "tree_us",
    "weakest_hop",
]
