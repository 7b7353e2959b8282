"""Ranked causes of a slow iteration, each with its predicted saving."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from workbench.errors import UsageError
from workbench.timings import Summary, stragglers
from workbench.timings.lateness import waiting_us
from workbench.timings.store import Rows, has_flag, warm
from workbench.timings.summary import summarize
from workbench.wire import Flag

if TYPE_CHECKING:
    from workbench.cluster import Cluster
    from workbench.fabric import FittedFabric
    from workbench.timings import Timings
    from workbench.timings.run import Run

WORTH_SHARE = 0.01
"""Causes below this share of the iteration are not worth a line."""
OTHER_SHARE = 0.1
"""Time in no phase of training is worth one from this share on."""
SLOW_GBPS = 1.0
"""What a link gives at the least: where bytes take little at that, it is not bytes that cost."""
LITTLE = 0.2
"""Bytes that take less than this share of a time are not its cause."""


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
        Predicted saving per iteration, an upper bound where `bound` is true; NaN where it
        cannot be told.
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
    "other": "see what it does between a step and the next forward, or before a step: "
    "a checkpoint, logging, a data source that is no DataLoader",
    "slow data": "its loader is slower than the others': look at its disk, its workers, its share",
    "slow compute": "it computes more, or on a slower or busier VM: look at its batches and load",
}


_SELDOM = (
    "communicate less often: a larger batch, or gradients of several batches at once "
    "(backward_passes_per_step, no_sync)"
)


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
    late = stragglers.find(rows)
    causes = [
        *_unheard(summary),
        *_late(summary, late),
        *_communication(summary, fabric, rows, late),
        *_data(summary),
        *_other(summary, rows),
    ]
    worth = [cause for cause in causes if not cause.saving_share < WORTH_SHARE]
    return sorted(worth, key=lambda cause: (not math.isnan(cause.saving_us), -cause.saving_us))


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


def _late(summary: Summary, late: list[dict[str, Any]]) -> Iterator[Cause]:
    """Ranks that the others wait for, and links, each for its share of the iterations."""
    for found in late:
        length = found["last_iteration"] - found["first_iteration"] + 1
        share = length / max(summary.iterations, length)
        excess = found["excess_us"] if found["rank"] < 0 else found["late_us"]
        if found["rank"] < 0:
            name, cure = "a slow link", "look at the NICs' counters, and who else uses the network"
            evidence = f"collectives take {excess / 1e3:.2f} ms longer"
        else:
            name = f"waiting for rank {found['rank']}"
            evidence = _lateness(found["phase"], found["excess_us"], excess)
            cure = _CURES.get(found["phase"]) or _CURES.get(
                found["kind"], "timings.stragglers() and timings.arrivals() say more"
            )
        when = "throughout" if found["how_often"] == "always" else found["how_often"]
        yield _cause(
            summary, name, f"{found['kind']}, {when}: {evidence}", cure, excess * share, bound=True
        )


def _lateness(phase: str, excess_us: float, late_us: float) -> str:
    """Say what a rank does longer than the others, and for how much of that they wait."""
    wait = f"for which the others wait {late_us / 1e3:.2f} ms"
    if phase == stragglers.UNKNOWN:
        return (
            f"it has its gradients ready {excess_us / 1e3:.2f} ms later than the others, who wait "
            "for it, and none of its phases takes so much longer"
        )
    what = "time outside all phases (other)" if phase == "other" else phase
    return f"its {what} takes {excess_us / 1e3:.2f} ms longer, {wait}"


def _unheard(summary: Summary) -> Iterator[Cause]:
    """Communication that no figure has."""
    if not summary.unheard:
        return
    where = "every iteration" if summary.unheard >= summary.iterations else "some iterations"
    if 0 < summary.unheard < summary.iterations:
        where = f"{summary.unheard:,} of {summary.iterations:,} iterations"
    yield _cause(
        summary,
        "communication that is not timed",
        f"in {where} torch.distributed communicates outside DistributedDataParallel (a call in "
        "the script, FSDP, ZeRO): its time is in the other phases, and its bytes are not counted",
        "only Horovod's collectives and DistributedDataParallel's buckets are timed",
        math.nan,
        bound=True,
    )


def _communication(
    summary: Summary, fabric: FittedFabric | None, rows: Rows, late: list[dict[str, Any]]
) -> Iterator[Cause]:
    exposed = summary.exposed_us
    if not summary.bytes or not exposed > 0 or rows["world_size"].max() < 2:
        return  # one rank has nobody to communicate with
    evidence = (
        f"training stands still for gradients {exposed / 1e3:.2f} ms an iteration "
        f"({summary.exposed_share:.0%}): {summary.bytes / 1e6:.2f} MB at "
        f"{summary.busbw_gbps:.2f} Gbit/s bus bandwidth"
    )
    rows = warm(rows)
    waited = np.nan_to_num(waiting_us(rows))
    if (named := float(np.mean(waited * _within(rows, late)))) > 0:
        evidence += f"; {named / 1e3:.2f} ms of it is waiting for the late ranks"
        exposed = max(0.0, exposed - named)  # which are causes of their own
    if fabric is None or not fabric.reliable:
        why = "cluster.calibrate() measures it" if fabric is None else fabric.caveat
        evidence += f"; what the fabric could give is not known: {why}"
        cure = "hide it behind compute (a larger batch), or send less (fp16 compression)"
        if summary.bytes * 8 / (SLOW_GBPS * 1e3) < LITTLE * exposed:
            cure = f"so few bytes do not cost that: {_SELDOM}"
        yield _cause(summary, "exposed communication", evidence, cure, exposed, bound=True)
        return
    should, sending = fabric.predict_us(summary.bytes), fabric.us_per_byte * summary.bytes
    evidence += (
        f"; this fabric gives such an allreduce in {should / 1e3:.2f} ms "
        f"(\u00b1 {fabric.error:.0%}), {fabric.fixed_us / 1e3:.2f} ms of it whatever its size"
    )
    if sending >= LITTLE * should:
        saved = min(exposed, sending / 2)
        cure = "halve the bytes: hvd.DistributedOptimizer(compression=hvd.Compression.fp16)"
        yield _cause(summary, "bytes on the wire", evidence, cure, saved, bound=False)
    else:
        saved = min(exposed, fabric.fixed_us)
        yield _cause(summary, "latency of communication", evidence, _SELDOM, saved, bound=True)
    # what lies within the calibration's error is no finding
    least = should * (1 + fabric.error)
    over = min(exposed, summary.communication_us - float(waited.mean()) - least)
    cure = "see who else uses the network, and the NICs' counters; fewer, larger collectives"
    yield _cause(summary, "communication slower than the fabric", evidence, cure, over, bound=True)


def _within(rows: Rows, late: list[dict[str, Any]]) -> npt.NDArray[np.bool_]:
    """Return which rows are of iterations in which a rank was late."""
    inside = np.zeros(len(rows), dtype=bool)
    for found in late:
        if found["rank"] >= 0:
            inside |= (rows["iteration"] >= found["first_iteration"]) & (
                rows["iteration"] <= found["last_iteration"]
            )
    return inside


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


def _other(summary: Summary, rows: Rows) -> Iterator[Cause]:
    """Time in no phase of training, and what is known of its place."""
    other = summary.phases_us["other"]
    if not other >= OTHER_SHARE * summary.iteration_us:
        return
    evidence = f"{other / 1e3:.2f} ms an iteration lie in no phase of training, {_place(rows)}"
    if summary.unheard:
        evidence += "; communication that is not timed may be a part of it"
    yield _cause(
        summary,
        "time in no phase (other)",
        evidence,
        "see what the loop does there: a pause, logging, a checkpoint, an evaluation, or a data "
        "source that is no DataLoader (a DataLoader with num_workers loads ahead)",
        other,
        bound=True,
    )


def _place(rows: Rows) -> str:
    """Say where most of `other` lies."""
    rows = warm(rows)
    half = rows["other_ns"].sum() / 2
    for flag, words in _PLACES.items():
        if rows["other_ns"][has_flag(rows, flag)].sum() > half:
            return words
    return "such as an evaluation between the steps"


_PLACES = {
    Flag.FORWARD_UNSEEN: "for no module's forward was seen: loading and forward are in it",
    Flag.OTHER_BEFORE_FORWARD: (
        "most of it between optimizer.step() and the next forward, outside any DataLoader"
    ),
    Flag.OTHER_BEFORE_STEP: "most of it between the backward and optimizer.step()",
}
