"""Ranked causes of a slow iteration, each with its predicted saving."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from workbench.advisor.cause import Cause, cause
from workbench.advisor.communication import communication_causes
from workbench.advisor.pipeline import pipeline_causes
from workbench.advisor.sampled import sampled_lines
from workbench.advisor.transport import transport_causes
from workbench.advisor.waiting import Waiting, find_waiting
from workbench.errors import UsageError
from workbench.ranks import checked_int
from workbench.timings import Summary, stages, stragglers
from workbench.timings.pauses import only_rank
from workbench.timings.ring_delays import UNKNOWN
from workbench.timings.store import Rows, has_flag, phases_unseen, warm
from workbench.timings.summary import summarize
from workbench.wire import Flag

if TYPE_CHECKING:
    from workbench.cluster import Cluster
    from workbench.timings import Timings
    from workbench.timings.run import Run
    from workbench.wire.sample_messages import LineSamples

WORTH_SHARE = 0.01
"""Causes below this share of the iteration are not reported."""
OTHER_SHARE = 0.1
"""Time outside all phases is reported from this share of the iteration on."""
MOSTLY = 0.75
"""A rank that causes at least this share of such waiting is named."""


_CURES = {
    "other": "check what it does between a step and the next forward, or before a step: "
    "a checkpoint, logging, a data source other than a DataLoader",
    "slow data": "its loader is slower than the others': check its disk, workers and file share",
    "slow compute": "it computes more, or on a slower or busier VM: check its batches and load",
}


def explain(
    training: Cluster | Timings | Run, latest: int | None = None, *, all_cells: bool = False
) -> list[Cause]:
    """Return what slows down a training, the largest saving first.

    Parameters
    ----------
    training
        A cluster, its timings, or a run on disk (`open_run`).
    latest
        Number of the newest iterations to explain, from any cells.
    all_cells
        Explain all iterations; by default, and without `latest`, those of the
        last cell that recorded any.

    Raises
    ------
    UsageError
        No iteration was recorded yet, a cell after the last recorded iterations was not
        recorded, or `latest` is not positive.
    """
    if latest is not None:
        latest = checked_int(latest, "latest", 1)
    fabric, timings = getattr(training, "fabric", None), timings_of(training)
    if latest is None and not all_cells:
        _check_recorded(timings)
    rows: Rows = timings.rows()
    if latest is not None and len(rows):
        rows = rows[rows["iteration"] > rows["iteration"].max() - latest]
    elif not all_cells and len(rows):
        rows = rows[rows["cell"] == rows["cell"].max()]
    summary = summarize(rows)
    if not summary.iterations:
        off = getattr(timings, "unrecorded", "")
        why = off or "no iteration was recorded. Train in a %%distributed cell first."
        raise UsageError(f"Nothing to explain: {why}")
    vms = _vms(timings)
    late = stragglers.find(rows, vms)
    samples = _samples(timings, rows)
    waiting = find_waiting(summary, warm(rows), late)
    causes = [
        *_unheard(summary),
        *_late(summary, late, samples, vms),
        *_uneven(summary, waiting),
        *communication_causes(summary, fabric, rows, waiting),
        *transport_causes(summary, training),
        *_pipelines(summary, timings, rows),
        *_data(summary),
        *_other(summary, rows, samples),
    ]
    worth = [one for one in causes if not one.saving_share < WORTH_SHARE]
    return sorted(worth, key=lambda one: (not math.isnan(one.saving_us), -one.saving_us))


def timings_of(training: object) -> Any:
    """Return the timings of a cluster; timings themselves, or a run, as they are."""
    timings: Any = getattr(training, "timings", training)
    if not callable(getattr(timings, "rows", None)):
        raise UsageError(
            f"a {type(training).__name__}: not a training that can be explained. Give a cluster, "
            "its timings, or a run, such as wb.open_run(name)."
        )
    return timings


def _check_recorded(timings: Any) -> None:
    """Raise an error if a later cell was not recorded, so that no earlier one is explained."""
    if not getattr(timings, "outdated", False):
        return
    what = "the last cell was not recorded"
    if timings.last_recorded:
        what = "an earlier cell was not recorded, and no later one had iterations"
    switch = "" if timings.recording else "Switch recording on with %timings on. "
    raise UsageError(
        f"Nothing to explain: {what}. {switch}Run the training again, or explain earlier cells "
        "with %explain --all."
    )


def _late(
    summary: Summary,
    late: list[dict[str, Any]],
    samples: dict[int, LineSamples],
    vms: dict[int, str],
) -> Iterator[Cause]:
    """Yield late ranks, slow links and pauses of VMs, each for its share of the iterations."""
    for found in late:
        length = found["last_iteration"] - found["first_iteration"] + 1
        share = length / max(summary.iterations, length)
        if found["vm"]:  # its length is not per iteration
            yield _pause(summary, found)
            continue
        excess = found["excess_us"] if found["rank"] < 0 else found["late_us"]
        if found["rank"] < 0:
            name, cure = "a slow link", "check the NICs' counters and other users of the network"
            evidence = f"collectives take {excess / 1e3:.2f} ms longer"
        else:
            name = f"waiting for rank {found['rank']}"
            evidence = _lateness(found["phase"], found["excess_us"], excess)
            if found["phase"] == "other" and found["rank"] in samples:
                evidence += f"; sampled: {sampled_lines({0: samples[found['rank']]})}"
            cure = _CURES.get(found["phase"]) or _CURES.get(
                found["kind"], "see timings.stragglers() and timings.arrivals()"
            )
            vm = only_rank(found["rank"], vms) if length == 1 else ""
            if vm:
                evidence += (
                    f"; rank {found['rank']} is the only one of VM {vm}, so a pause of the VM "
                    "(such as vMotion, snapshot or suspend) would look the same"
                )
        when = "throughout" if found["how_often"] == "always" else found["how_often"]
        yield cause(
            summary, name, f"{found['kind']}, {when}: {evidence}", cure, excess * share, bound=True
        )


def _pause(summary: Summary, found: dict[str, Any]) -> Cause:
    """Return a pause of a VM, whose cost is how long the others waited for it."""
    first, last, waited_us = found["first_iteration"], found["last_iteration"], found["late_us"]
    where = f"iteration {first}" if first == last else f"iterations {first} to {last}"
    return cause(
        summary,
        f"pause of VM {found['vm']} (such as vMotion, snapshot or suspend)",
        f"in {where} all ranks of {found['vm']} stopped at once for "
        f"{found['excess_us'] / 1e3:.0f} ms, and the others waited {waited_us / 1e3:.0f} ms",
        f"ask the administrator for events of {found['vm']} at that time (vMotion by DRS, "
        "snapshot, suspend, backup), and to exclude it from them while it trains; if there were "
        "none, check what else uses its CPUs",
        waited_us / max(summary.iterations, 1),
        bound=True,
    )


def _vms(timings: Any) -> dict[int, str]:
    """Return the host names of the ranks' VMs, where known."""
    names = getattr(timings, "vm_names", None)
    return {} if names is None else names()


def _lateness(phase: str, excess_us: float, late_us: float) -> str:
    """Return which phase of a rank takes longer, and for how long the others wait."""
    wait = f"and the others wait {late_us / 1e3:.2f} ms for it"
    if phase == UNKNOWN:
        return (
            f"its gradients are ready {excess_us / 1e3:.2f} ms later than the others', which wait "
            "for it, but none of its phases takes that much longer"
        )
    what = "time outside all phases (other)" if phase == "other" else phase
    return f"its {what} takes {excess_us / 1e3:.2f} ms longer, {wait}"


def _unheard(summary: Summary) -> Iterator[Cause]:
    """Yield communication that is not recorded."""
    if not summary.unheard:
        return
    where = "every iteration" if summary.unheard >= summary.iterations else "some iterations"
    if 0 < summary.unheard < summary.iterations:
        where = f"{summary.unheard:,} of {summary.iterations:,} iterations"
    yield cause(
        summary,
        "communication that is not timed",
        f"in {where} ranks communicate by means that are not recorded (Horovod from another build, "
        "or torch.distributed.rpc): its time is in the other phases, and its bytes are not counted",
        "build Horovod with workbench build-horovod, if %doctor shows that it records no times; "
        "calls of torch.distributed.rpc are never timed",
        math.nan,
        bound=True,
    )


def _uneven(summary: Summary, waiting: Waiting) -> Iterator[Cause]:
    """Yield waiting for ranks that are late now and then, or in turn."""
    if not waiting.uneven_us:
        return
    one = waiting.rank_share >= MOSTLY
    saving = waiting.rank_us if one else waiting.uneven_us
    evidence = (
        f"the others wait {saving / 1e3:.2f} ms per iteration for rank {waiting.rank} "
        f"({waiting.rank_share:.0%} of such waiting), which is late by varying times"
        if one
        else f"ranks wait {saving / 1e3:.2f} ms per iteration for the last one, which is not "
        "always the same one"
    )
    yield cause(
        summary,
        "uneven iterations",
        evidence,
        "give all ranks the same work in each iteration: batches of the same length, and "
        "checkpoints and logging outside the loop or on all ranks at once. "
        "see timings.arrivals()",
        saving,
        bound=True,
    )


def _pipelines(summary: Summary, timings: Any, rows: Rows) -> Iterator[Cause]:
    """Yield the idle time of pipeline stages."""
    if summary.messages_us > 0:
        yield from pipeline_causes(summary, *stages.newest(timings, rows))


def _data(summary: Summary) -> Iterator[Cause]:
    loading = summary.phases_us["data"]
    if not loading > 0:
        return
    yield cause(
        summary,
        "data loading",
        f"the next batch takes {loading / 1e3:.2f} ms per iteration",
        "prefetch: DataLoader(num_workers=..., prefetch_factor=...)",
        loading,
        bound=True,
    )


def _samples(timings: Any, rows: Rows) -> dict[int, LineSamples]:
    """Return where ranks spent time in no phase in the cell of some rows, if it was sampled."""
    found: dict[int, LineSamples] = getattr(timings, "line_samples", {})
    return {rank: one for rank, one in found.items() if (rows["cell"] == one.cell).any()}


def _other(summary: Summary, rows: Rows, samples: dict[int, LineSamples]) -> Iterator[Cause]:
    """Yield time outside all phases, with the lines where it was spent, or its position."""
    other = summary.phases_us["other"]
    compiled = phases_unseen(rows)  # not a cost, but unknown
    if not other >= OTHER_SHARE * summary.iteration_us or compiled.mean() > 0.5:
        return
    evidence = f"{other / 1e3:.2f} ms per iteration are in no phase of training, {_place(rows)}"
    cure = (
        "check what the loop does there: a pause, logging, a checkpoint, an evaluation, or a data "
        "source other than a DataLoader (a DataLoader with num_workers prefetches)"
    )
    if summary.unheard:
        evidence += "; communication that is not timed may be included"
    lines = sampled_lines(samples)
    if lines:
        evidence += f"; sampled: {lines}"
    else:
        cure += ". To see the lines, run %explain --sample, then the cell again"
    yield cause(
        summary,
        "time in no phase (other)",
        evidence,
        cure,
        other,
        bound=True,
    )


def _place(rows: Rows) -> str:
    """Return where most of `other` is."""
    rows = warm(rows)
    half = rows["other_ns"].sum() / 2
    for flag, words in _PLACES.items():
        if rows["other_ns"][has_flag(rows, flag)].sum() > half:
            return words
    return "such as an evaluation between the steps"


_PLACES = {
    Flag.FORWARD_UNSEEN: "as no module's forward was seen: it includes loading and forward",
    Flag.OTHER_BEFORE_FORWARD: (
        "most of it between optimizer.step() and the next forward, outside any DataLoader"
    ),
    Flag.OTHER_BEFORE_STEP: "most of it between the backward and optimizer.step()",
}
