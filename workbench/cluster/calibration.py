"""Measuring what a fabric gives, with the library and the ranks that train over it."""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING

from workbench.cluster.sink import TextSink
from workbench.errors import UsageError
from workbench.fabric import FittedFabric, fit

if TYPE_CHECKING:
    from workbench.cluster.cluster import Cluster

SIZES_BYTES = tuple(1 << power for power in range(12, 26, 2))
"""4 KB to 16 MB."""

REPETITIONS = 20

_SWEEPS = 3
"""How many sweeps are made at most, until a line describes one of them."""

_SWEEP = """
def _workbench_sweep(sizes, repetitions):
    import time, torch
    on = torch.device(device)
    finish = torch.cuda.synchronize if on.type == "cuda" else lambda _: None
    times = []
    for size in sizes:
        tensor = torch.zeros(size // 4, device=on)
        taken = []
        for turn in range(repetitions + 2):
            finish(on)
            hvd.barrier()
            began = time.perf_counter()
            hvd.allreduce_(tensor, op=hvd.Sum, name=f"workbench.sweep.{{size}}")
            finish(on)
            taken.append(time.perf_counter() - began)
        times.append(sorted(taken[2:])[repetitions // 2] * 1e6)
    return times
_workbench_sweep({sizes}, {repetitions})
"""


def measure(cluster: Cluster, timeout_s: float) -> FittedFabric:
    """Sweep allreduces over all ranks, and fit a line to the medians of the slowest rank.

    The tensors are on each rank's `device`. Where no line describes what was
    measured, for other processes disturbed it, the sweep is repeated; the one that
    its line describes best is kept. If that is unreliable too, a warning says so,
    and advice does not rest on it.
    """
    if cluster.n < 2:
        raise UsageError(
            "Cannot calibrate on 1 rank: a collective takes at least 2. Start a cluster of more."
        )
    ends = time.monotonic() + timeout_s
    fabric = _sweep(cluster, timeout_s)
    for _ in range(_SWEEPS - 1):
        left_s = ends - time.monotonic()
        if fabric.reliable or left_s < timeout_s / 2:
            break
        fabric = min(fabric, _sweep(cluster, left_s), key=lambda one: one.error)
    if not fabric.reliable:
        warnings.warn(fabric.caveat, UserWarning, stacklevel=3)
    return fabric


def _sweep(cluster: Cluster, timeout_s: float) -> FittedFabric:
    source = _SWEEP.format(sizes=SIZES_BYTES, repetitions=REPETITIONS)
    by_rank = cluster.run(source, timeout=timeout_s, sink=TextSink()).values.values()
    slowest = [max(times) for times in zip(*by_rank, strict=True)]
    return fit(list(SIZES_BYTES), slowest, cluster.n)
