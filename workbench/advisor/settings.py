"""Find causes in the reduction of gradients: Horovod's fusion, overlap, and size of the batch.

The savings of this module are simulated from the times of the training's collectives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate

from workbench.advisor.communication import LESS_OFTEN, exposed_of, fixed_us
from workbench.advisor.evidence import Evidence
from workbench.fabric.overlap import Workload, simulate
from workbench.timings.verdict import Cause

THRESHOLDS_BYTES = tuple(size << 20 for size in (0, 1, 4, 16, 64, 128))
"""Values of HOROVOD_FUSION_THRESHOLD that are tried; the last one is the default."""
MIN_SAVING_SHARE = 0.9
"""The advice is the largest threshold, as the safest, with this share of the best saving."""
LATE_SHARE = 0.8
"""Gradients do not overlap if the first gradient is ready after this share of the backward."""
_PIECES = 8
"""Number of pieces into which a single gradient is assumed to be divided."""


def fusion(evidence: Evidence) -> Iterator[Cause]:
    """Yield a fusion threshold that is too small, or too large to overlap."""
    model = evidence.model
    replay = evidence.predict()
    if model is None or replay is None or not model.fuses or not exposed_of(evidence):
        return
    predictions = [
        prediction
        for size in THRESHOLDS_BYTES
        if (prediction := evidence.predict(fusion_threshold_bytes=size)) is not None
    ]
    if not predictions:
        return
    best = min(prediction.predicted_us for prediction in predictions)
    saved = replay.predicted_us - best
    precision_us = abs(replay.replay_error) * replay.measured_us if replay.reliable else 0.0
    if saved <= precision_us:
        return
    good_predictions = [
        prediction
        for prediction in predictions
        if replay.predicted_us - prediction.predicted_us >= MIN_SAVING_SHARE * saved
    ]
    advised = good_predictions[-1]
    size = int(advised.changes.fusion_threshold_bytes or 0)
    before, after = (len(case.simulated.buffer_bytes) for case in (replay, advised))
    text = (
        f"{len(model.work.sizes_bytes)} gradients travel in {before} buffers per iteration, each "
        f"of which takes {(model.model.fixed_us + model.model.negotiation_us) / 1e3:.2f} ms "
        f"whatever its size; {after} would do"
    )
    if after > before:
        text = (
            f"{len(model.work.sizes_bytes)} gradients travel in {before} buffers per iteration: "
            f"in {after} smaller ones, transfers would begin earlier in the backward"
        )
    fix = (
        f"set HOROVOD_FUSION_THRESHOLD={size} ({size >> 20} MiB) in the environment of the ranks "
        "before Horovod starts"
    )
    yield evidence.predicted("fusion threshold", text, fix, advised)


def overlap(evidence: Evidence) -> Iterator[Cause]:
    """Yield gradients that are all ready at the end of the backward, so that nothing overlaps."""
    model = evidence.model
    replay = evidence.predict()
    backward_us = evidence.summary.phases_us["backward"]
    if model is None or replay is None or not exposed_of(evidence) or not backward_us > 0:
        return
    work = model.work
    begin = work.compute_us - backward_us
    if work.ready_us[0] < begin + LATE_SHARE * backward_us:
        return
    simulated = simulate(work, model.model)
    spread = simulate(_spread(work, backward_us), model.model)
    saved = min(simulated.exposed_us - spread.exposed_us, exposed_of(evidence))
    text = (
        f"none of the {work_count(work)} is ready before {LATE_SHARE:.0%} of the backward "
        f"({backward_us / 1e3:.2f} ms), so that training waits for "
        f"{model.exposed_us / 1e3:.2f} ms of their communication"
    )
    fix = (
        "reduce gradients while the backward computes others: hvd.DistributedOptimizer or DDP "
        "around separate parameters, not one flattened tensor, nor a reduction after the backward"
    )
    yield evidence.simulated("no overlap with the backward", text, fix, saved, replay)


def work_count(work: Workload) -> str:
    """Return the number of gradients in words."""
    count = len(work.sizes_bytes)
    return f"{count} gradients" if count > 1 else "1 gradient"


def _spread(work: Workload, backward_us: float) -> Workload:
    """Return the same work, with gradients that become ready evenly over the backward, by bytes."""
    sizes = work.sizes_bytes
    if len(sizes) == 1:
        sizes = (sizes[0] / _PIECES,) * _PIECES
    begin = work.compute_us - backward_us
    total = sum(sizes) or 1.0
    ready = tuple(begin + backward_us * done / total for done in accumulate(sizes))
    return replace(work, ready_us=ready, sizes_bytes=sizes)


def too_little_work(evidence: Evidence) -> Iterator[Cause]:
    """Yield compute that is short compared with the latency of communication."""
    fixed = fixed_us(evidence)
    larger = evidence.predict(batch_scale=2.0)
    if not fixed or larger is None:
        return
    computed = evidence.summary.iteration_us - evidence.summary.exposed_us
    text = (
        f"a rank computes {computed / 1e3:.2f} ms per iteration, and communication takes "
        f"{fixed / 1e3:.2f} ms whatever the number of bytes"
    )
    saved = larger.measured_us - larger.predicted_us / 2
    fix = f"{LESS_OFTEN}. The saving is that of twice the batch, for the same samples"
    yield evidence.simulated("too little work per rank", text, fix, saved, larger)
