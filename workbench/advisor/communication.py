"""Why training waits for gradients: queueing, bytes, latency, or a slow fabric."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from workbench.advisor.cause import Cause, cause
from workbench.advisor.waiting import Waiting
from workbench.timings import Summary
from workbench.timings.store import Rows

if TYPE_CHECKING:
    from workbench.fabric import FittedFabric

SLOW_GBPS = 1.0
"""Rate of a slow link, in Gbit/s: if the bytes take little time even at this rate, latency is
the cause."""
LITTLE = 0.2
"""Bytes that take less than this share of a duration are not its cause."""
_LESS_OFTEN = (
    "communicate less often: a larger batch, or gradients of several batches together "
    "(backward_passes_per_step, no_sync)"
)
_SLOW_LINK = (
    f"most of it is the transfer of few bytes, far below {SLOW_GBPS:g} Gbit/s: check the link's "
    f"rate and latency, its other users, and the load of the cores; until then, {_LESS_OFTEN}"
)
_QUEUED = (
    "gradients that all ranks have submitted wait {:.2f} ms per iteration, while nothing is "
    "transferred: for negotiation, Horovod's cycles, and copies into and out of buffers"
)
_QUEUED_CURE = (
    "leave a core for Horovod's thread (fewer DataLoader workers, a smaller OMP_NUM_THREADS), and "
    "reduce fewer, larger tensors (HOROVOD_FUSION_THRESHOLD, num_groups); HOROVOD_CYCLE_TIME is "
    "the least time between two negotiations"
)


def communication_causes(
    summary: Summary, fabric: FittedFabric | None, rows: Rows, waiting: Waiting
) -> Iterator[Cause]:
    """Yield why training waits for gradients that no late rank delays."""
    exposed = summary.exposed_us - summary.messages_us
    if not summary.bytes or not exposed > 0 or rows["world_size"].max() < 2:
        return  # a single rank does not communicate
    evidence = (
        f"training waits {exposed / 1e3:.2f} ms per iteration for gradients "
        f"({exposed / summary.iteration_us:.0%}): {_figure(summary.bytes / 1e6)} MB at "
        f"{_figure(summary.busbw_gbps)} Gbit/s bus bandwidth{_parts(summary)}"
    )
    # waiting for late ranks is a cause of its own
    if waiting.named_us > 0:
        evidence += f"; {waiting.named_us / 1e3:.2f} ms of it is waiting for the late ranks"
    if waiting.uneven_us > 0:
        evidence += f"; {waiting.uneven_us / 1e3:.2f} ms of it is due to uneven iterations"
    exposed = max(0.0, exposed - waiting.named_us - waiting.uneven_us)
    if not math.isnan(summary.queued_us):
        queued = min(summary.queued_us, exposed)
        exposed -= queued
        yield cause(
            summary, "queueing", _QUEUED.format(queued / 1e3), _QUEUED_CURE, queued, bound=True
        )
    yield from _sending(summary, fabric, evidence, exposed, waiting)


def _figure(value: float) -> str:
    """Return a figure with two digits after the point, or two that are not 0."""
    return f"{value:.2f}" if not 0 < value < 0.1 else f"{value:.2g}"


def _parts(summary: Summary) -> str:
    """Return a clause with the parts of the exposed time, if they are known."""
    parts = (summary.waiting_us, summary.queued_us, summary.transfer_us)
    if any(map(math.isnan, parts)):
        return ""
    waiting, queued, transfer = (f"{us / 1e3:.2f} ms" for us in parts)
    return f"; {waiting} for the last rank, {queued} in queues, {transfer} in transfer"


def _sending(
    summary: Summary,
    fabric: FittedFabric | None,
    evidence: str,
    exposed: float,
    waiting: Waiting,
) -> Iterator[Cause]:
    """Yield what sending costs, of which `exposed` is in the iteration."""
    if fabric is None or not fabric.reliable:
        why = "run cluster.calibrate() to measure it" if fabric is None else fabric.caveat
        evidence += f"; the fabric's bandwidth is unknown: {why}"
        cure = "hide it behind compute (a larger batch), or send less (fp16 compression)"
        if summary.bytes * 8 / (SLOW_GBPS * 1e3) < LITTLE * exposed:
            cure = f"this time is not due to the few bytes: {_LESS_OFTEN}"
            if summary.transfer_us >= exposed / 2:
                cure = _SLOW_LINK
        yield cause(summary, "exposed communication", evidence, cure, exposed, bound=True)
        return
    should = fabric.predict_us(summary.bytes)
    sending = should - fabric.fixed_us
    evidence += (
        f"; on this fabric such an allreduce takes {should / 1e3:.2f} ms "
        f"(\u00b1 {fabric.error:.0%}), of which {fabric.fixed_us / 1e3:.2f} ms for any size"
    )
    if sending >= LITTLE * should:
        saved = min(exposed, should - fabric.predict_us(summary.bytes / 2))
        cure = "halve the bytes: hvd.DistributedOptimizer(compression=hvd.Compression.fp16)"
        yield cause(summary, "bytes on the wire", evidence, cure, saved, bound=False)
    else:
        saved = min(exposed, fabric.fixed_us)
        yield cause(summary, "latency of communication", evidence, _LESS_OFTEN, saved, bound=True)
    # A difference within the calibration's error is not reported.
    least = should * (1 + fabric.error)
    over = min(exposed, summary.communication_us - waiting.all_us - least)
    cure = "check other users of the network and the NICs' counters; use fewer, larger collectives"
    yield cause(summary, "communication slower than the fabric", evidence, cure, over, bound=True)
