"""The performance of links: nominal, by cost models, and as measured.

- `nominal`: published rates, and the nominal rates of a VM's links
- `hops`: the hops of the ring that a job's ranks form
- `models`: cost models of collectives, and the payload's share of a link's rate by protocol
- `calibration`: measures a sweep of allreduces; `fit` fits lines to its times, and `stored` saves
  the result
- `matrix`: measures the bandwidth of each pair of VMs
- `planning`: predicts the cost of a training. `plan_figures` has the formulas, `plan_record` the
  result, `model_size` measures the model, and `quantities` parses and formats numbers with units
- `batch_size`: finds the largest batch that fits into memory, by trying
- `overlap`: simulates how communication overlaps with the compute of an iteration
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
