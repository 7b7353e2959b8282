"""Ranked causes of a slow iteration, each with its predicted saving."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import UsageError
from workbench.timings import Summary, stragglers
from workbench.timings.lateness import waiting_us
from workbench.timings.store import Rows
from workbench.timings.summary import summarize

if TYPE_CHECKING:
    from workbench.cluster import Cluster
    from workbench.fabric import FittedFabric
    from workbench.timings import Timings
    from workbench.timings.run import Run

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


_CURES = {
    "slow data": "its loader is slower than the others': look at its disk, its workers, its share",
    "slow compute": "it computes more, or on a slower or busier VM: look at its batches and load",
}


def explain(
    training: Cluster | Timings | Run, latest: int | None = None, *, all_cells: bool = False
) -> list[Cause]:
    """Return what slows a training, the largest saving first.

    Parameters
    ----------
    training
        A cluster, its timings, or a run on disk (`open_run`).
    latest
        How many of the newest iterations to explain, of whatever cells.
    all_cells
        Explain all iterations; by default, and without `latest`, those of the
        last cell that recorded any.

    Raises
    ------
    UsageError
        No iteration was recorded yet, or `latest` is no number of iterations.
    """
    if latest is not None and latest < 1:
        raise UsageError(f"latest={latest}: must be a positive integer. Leave it out for one cell.")
    fabric = getattr(training, "fabric", None)
    rows = _rows(training)
    if latest is not None and len(rows):
        rows = rows[rows["iteration"] > rows["iteration"].max() - latest]
    elif not all_cells and len(rows):
        rows = rows[rows["cell"] == rows["cell"].max()]
    summary = summarize(rows)
    if not summary.iterations:
        raise UsageError(
            "Nothing to explain: no iteration was recorded. Train in a %%distributed cell first."
        )
    causes = [
        *_late(summary, rows),
        *_communication(summary, fabric, rows),
        *_data(summary),
    ]
    worth = [cause for cause in causes if cause.saving_share >= WORTH_SHARE]
    return sorted(worth, key=lambda cause: -cause.saving_us)


def _rows(training: object) -> Rows:
    """Return the iterations of a cluster, its timings, or a run."""
    timings: Any = getattr(training, "timings", training)
    if not callable(getattr(timings, "rows", None)):
        raise UsageError(
            f"a {type(training).__name__}: not a training that can be explained. Give a cluster, "
            "its timings, or a run, such as wb.open_run(name)."
        )
    rows: Rows = timings.rows()
    return rows


def _cause(
    summary: Summary, name: str, evidence: str, cure: str, saving: float, *, bound: bool
) -> Cause:
    return Cause(name, evidence, cure, saving, saving / summary.iteration_us, bound)


def _late(summary: Summary, rows: Rows) -> Iterator[Cause]:
    """Ranks that the others wait for, and links, each for its share of the iterations."""
    for found in stragglers.find(rows):
        length = found["last_iteration"] - found["first_iteration"] + 1
        share = length / max(summary.iterations, length)
        excess = found["excess_us"] if found["rank"] < 0 else found["late_us"]
        if found["rank"] < 0:
            name, cure = "a slow link", "look at the NICs' counters, and who else uses the network"
            evidence = f"collectives take {excess / 1e3:.2f} ms longer"
        else:
            name = f"waiting for rank {found['rank']}"
            evidence = (
                f"its {found['phase']} takes {found['excess_us'] / 1e3:.2f} ms longer, for which "
                f"the others wait {excess / 1e3:.2f} ms"
            )
            cure = _CURES.get(found["kind"], "timings.stragglers() and timings.arrivals() say more")
        when = "throughout" if found["how_often"] == "always" else found["how_often"]
        yield _cause(
            summary, name, f"{found['kind']}, {when}: {evidence}", cure, excess * share, bound=True
        )


def _communication(summary: Summary, fabric: FittedFabric | None, rows: Rows) -> Iterator[Cause]:
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
    waited = np.nan_to_num(waiting_us(rows))
    over = min(exposed, summary.communication_us - float(waited.mean()) - should)
    cure = "see who else uses the network, and the NICs' counters; fewer, larger collectives"
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
