"""Ranked causes of a slow iteration, each with its predicted saving."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.errors import UsageError
from workbench.timings import Summary

if TYPE_CHECKING:
    from workbench.cluster import Cluster
    from workbench.fabric import FittedFabric

WORTH_SHARE = 0.01
"""Causes below this share of the iteration are not worth a line."""


@dataclass(frozen=True)
class Cause:
    """One reason why iterations take as long as they do.

    Attributes
    ----------
    name
        Such as ``"exposed communication"``.
    evidence
        What was measured.
    cure
        What would help.
    saving_us
        Predicted saving per iteration, an upper bound where `bound` is true.
    saving_share
        The same as a share of the iteration.
    bound
        Whether the saving is only known to be no more than this.
    """

    name: str
    evidence: str
    cure: str
    saving_us: float
    saving_share: float
    bound: bool


def explain(cluster: Cluster) -> list[Cause]:
    """Return what slows the cluster's training, the largest saving first.

    Raises
    ------
    UsageError
        No iteration was recorded yet.
    """
    summary = cluster.timings.summary()
    if not summary.iterations:
        raise UsageError(
            "an explanation was asked for and no iteration was recorded: "
            "train in a %%distributed cell first"
        )
    causes = [*_waiting(summary), *_communication(summary, cluster.fabric), *_data(summary)]
    worth = [cause for cause in causes if cause.saving_share >= WORTH_SHARE]
    return sorted(worth, key=lambda cause: -cause.saving_us)


def _cause(
    summary: Summary, name: str, evidence: str, cure: str, saving: float, *, bound: bool
) -> Cause:
    return Cause(name, evidence, cure, saving, saving / summary.iteration_us, bound)


def _waiting(summary: Summary) -> Iterator[Cause]:
    if summary.slowest_rank is None or summary.slowest_excess_us is None:
        return
    yield _cause(
        summary,
        f"waiting for rank {summary.slowest_rank}",
        f"it arrives last throughout; the others wait {summary.slowest_excess_us / 1e3:.2f} ms",
        "timings.stragglers() names the phase in which it differs",
        summary.slowest_excess_us,
        bound=True,
    )


def _communication(summary: Summary, fabric: FittedFabric | None) -> Iterator[Cause]:
    exposed = summary.exposed_us
    if not summary.bytes or not exposed > 0:
        return
    evidence = (
        f"training stands still for gradients {exposed / 1e3:.2f} ms an iteration "
        f"({summary.exposed_share:.0%}): {summary.bytes / 1e6:.2f} MB at "
        f"{summary.busbw_gbps:.2f} Gbit/s bus bandwidth"
    )
    if fabric is None:
        evidence += "; what the fabric could give is not known: cluster.calibrate() measures it"
        cure = "hide it behind compute (a larger batch), or send less (fp16 compression)"
        yield _cause(summary, "exposed communication", evidence, cure, exposed, bound=True)
        return
    should = fabric.predict_us(summary.bytes)
    evidence += f"; this fabric gives such an allreduce in {should / 1e3:.2f} ms"
    saved = min(exposed, should - fabric.predict_us(summary.bytes / 2))
    cure = "halve the bytes: hvd.DistributedOptimizer(compression=hvd.Compression.fp16)"
    yield _cause(summary, "bytes on the wire", evidence, cure, saved, bound=False)
    over = min(exposed, summary.communication_us - should)
    cure = "fewer, larger collectives, and ranks that arrive together"
    yield _cause(summary, "communication slower than the fabric", evidence, cure, over, bound=True)


def _data(summary: Summary) -> Iterator[Cause]:
    loading = summary.phases_us["data"]
    if not loading > 0:
        return
    yield _cause(
        summary,
        "data loading",
        f"the next batch takes {loading / 1e3:.2f} ms an iteration",
        "load ahead: DataLoader(num_workers=..., prefetch_factor=...)",
        loading,
        bound=True,
    )
