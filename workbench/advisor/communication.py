"""Find why training waits for gradients: queueing, bytes, latency, or unknown.

The cause is unknown without a calibration of the fabric.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from workbench.advisor.evidence import Evidence
from workbench.advisor.what_if import link_gbps
from workbench.fabric.overlap import CYCLE_US
from workbench.timings import Summary
from workbench.timings.verdict import Cause

SLOW_GBPS = 1.0
"""Rate of a slow link, in Gbit/s. If the bytes take little time even at this rate, latency is the
cause."""
MIN_BYTES_SHARE = 0.2
"""The bytes are not the cause of a duration if they take less than this share of the
duration."""
FEW_BUFFERS = 2
"""With at most this number of buffers, fusion cannot save much."""
MAX_NEGOTIATION_US = 10_000.0
"""A negotiation that takes longer has waited for a long cycle, or for a busy core."""
MIN_LATENCY_SHARE = 0.5
"""Latency is the cause if it is at least this share of the time that training waits."""
LESS_OFTEN = (
    "communicate less often: a larger batch, or gradients of several batches together "
    "(backward_passes_per_step, no_sync)"
)
NETWORK_RULES = frozenset({
    "gpu_nic_too_far", "gpu_on_other_numa_node", "peer_memory_missing", "acs_redirect", "ats_off",
    "pcie_link_reduced", "nvlink_down", "nvlink_fewer_than_model", "fabric_not_ready",
    "unified_memory_on", "vgpu_without_p2p", "p2p_refused", "rdma_port_not_active",
    "rdma_port_slow", "roce_mtu", "roce_v1_gid", "rdma_unused", "nccl_p2p_disabled",
    "nccl_shm_disabled", "rdma_errors", "nvlinks_unlike", "rdma_unlike", "nic_sets_unlike",
    "gpudirect_unlike", "topology_file_missing",
})  # fmt: skip
"""Rules of the doctor with findings that explain slow communication."""
_SLOW_LINK = (
    f"most of it is the transfer of few bytes, far below {SLOW_GBPS:g} Gbit/s: check the link's "
    f"rate and latency, its other users, and the load of the cores; until then, {LESS_OFTEN}"
)
_QUEUED = (
    "gradients that all ranks have submitted wait {:.2f} ms per iteration, while nothing is "
    "transferred: for negotiation, Horovod's cycles, and copies into and out of buffers"
)
_QUEUED_FIX = (
    "leave a core for Horovod's thread (fewer DataLoader workers, a smaller OMP_NUM_THREADS), and "
    "reduce fewer, larger tensors (HOROVOD_FUSION_THRESHOLD, num_groups); HOROVOD_CYCLE_TIME is "
    "the least time between two negotiations"
)
_CYCLE_FIX = (
    "remove HOROVOD_CYCLE_TIME, or set it to 1 (ms), in the environment of the ranks before "
    "Horovod starts"
)


def exposed_of(evidence: Evidence) -> float:
    """Return the time per iteration, in us, for which training waits for gradients.

    Waiting for late ranks is subtracted. The time is 0 for one rank.
    """
    summary = evidence.summary
    waiting = evidence.waiting
    exposed = summary.exposed_us - summary.messages_us
    if not summary.bytes or not exposed > 0 or evidence.rows["world_size"].max() < 2:
        return 0.0
    return max(0.0, exposed - waiting.named_us - waiting.uneven_us)


def fixed_us(evidence: Evidence) -> float:
    """Return the time of communication, in us, that does not depend on its bytes; 0 if not a cause.

    It is a cause if at most `FEW_BUFFERS` buffers carry all gradients, and if their latency,
    negotiation and cycles take at least `MIN_LATENCY_SHARE` of the time that training waits for
    gradients, and of the time that it computes.
    """
    replay = evidence.predict()
    exposed = exposed_of(evidence)
    if evidence.model is None or replay is None or not exposed:
        return 0.0
    model = evidence.model.model
    count = len(replay.simulated.buffer_bytes)
    fixed = count * (model.fixed_us + model.negotiation_us) + min(model.cycle_us, CYCLE_US) / 2
    # The model has medians, which pauses in some iterations do not change.
    waited = min(exposed, evidence.model.exposed_us)
    computed = evidence.model.iteration_us - evidence.model.exposed_us
    is_cause = count <= FEW_BUFFERS and model.cycle_us <= CYCLE_US
    is_cause &= model.negotiation_us <= MAX_NEGOTIATION_US
    return fixed if is_cause and fixed >= MIN_LATENCY_SHARE * max(waited, computed) else 0.0


def queueing(evidence: Evidence) -> Iterator[Cause]:
    """Yield the time that gradients wait while nothing is transferred."""
    exposed = exposed_of(evidence)
    queued = evidence.summary.queued_us
    if not exposed or math.isnan(queued) or fixed_us(evidence):
        return
    queued = min(queued, exposed)
    text = _QUEUED.format(queued / 1e3)
    model = evidence.model
    with_default_cycle = None
    if model is not None and model.fuses and model.model.cycle_us > CYCLE_US:
        with_default_cycle = evidence.predict(cycle_time_ms=CYCLE_US / 1e3)
    if (
        model is None
        or with_default_cycle is None
        or with_default_cycle.measured_us - with_default_cycle.predicted_us < queued / 2
    ):
        yield evidence.cause("queueing", text, _QUEUED_FIX, queued, bound=True)
        return
    text += f"; cycles take about {model.model.cycle_us / 1e3:.0f} ms"
    yield evidence.predicted("queueing", text, _CYCLE_FIX, with_default_cycle)


def sending(evidence: Evidence) -> Iterator[Cause]:
    """Yield the time that training waits for the transfer of gradients."""
    exposed = exposed_of(evidence)
    summary = evidence.summary
    if not math.isnan(summary.queued_us):
        exposed -= min(summary.queued_us, exposed)
    if not summary.exposed_us > 0 or not exposed_of(evidence):
        return
    text = _described(evidence)
    fabric = evidence.fabric
    if fabric is None:
        yield _sending_at_unknown_rate(evidence, text, exposed)
        return
    expected_us = fabric.predict_us(summary.bytes)
    text += (
        f"; on this fabric such an allreduce takes {expected_us / 1e3:.2f} ms "
        f"(\u00b1 {fabric.error:.0%}), of which {fabric.fixed_us / 1e3:.2f} ms for any size"
    )
    if expected_us - fabric.fixed_us < MIN_BYTES_SHARE * expected_us:
        if fixed_us(evidence):
            return
        saved = min(exposed, fabric.fixed_us)
        yield evidence.cause("latency of communication", text, LESS_OFTEN, saved, bound=True)
        return
    fix = "halve the bytes: hvd.DistributedOptimizer(compression=hvd.Compression.fp16)"
    halved = evidence.predict(compression="fp16")
    if halved is not None:
        text += _faster_link(evidence)
        yield evidence.predicted("bytes on the wire", text, fix, halved)
        return
    saved = min(exposed, expected_us - fabric.predict_us(summary.bytes / 2))
    error_us = min(saved, fabric.error * expected_us)
    yield evidence.cause("bytes on the wire", text, fix, saved, error_us=error_us)


def _sending_at_unknown_rate(evidence: Evidence, text: str, exposed: float) -> Cause:
    """Return the exposed cost of sending, if the rate of the fabric is unknown."""
    summary = evidence.summary
    doctor_text, doctor_fixes = evidence.findings(NETWORK_RULES)
    text += f"; the fabric's bandwidth is unknown: {evidence.fabric_unknown}{doctor_text}"
    fix = "hide it behind compute (a larger batch), or send less (fp16 compression)"
    if summary.bytes * 8 / (SLOW_GBPS * 1e3) < MIN_BYTES_SHARE * exposed:
        fix = f"this time is not due to the few bytes: {LESS_OFTEN}"
        if summary.transfer_us >= exposed / 2:
            fix = _SLOW_LINK
    if doctor_fixes:
        fix += f"; {doctor_fixes}"
    name = "exposed communication"
    measure = "the fabric's rate, with %fabric calibrate"
    return evidence.cause(name, text, fix, exposed, bound=True, measure=measure)


def _described(evidence: Evidence) -> str:
    """Describe the exposed time with its bytes, its rate and its parts."""
    summary = evidence.summary
    waiting = evidence.waiting
    exposed = summary.exposed_us - summary.messages_us
    text = (
        f"training waits {exposed / 1e3:.2f} ms per iteration for gradients "
        f"({exposed / summary.iteration_us:.0%}): {_figure(summary.bytes / 1e6)} MB at "
        f"{_figure(summary.busbw_gbps)} Gbit/s bus bandwidth{_parts(summary)}"
    )
    # Waiting for late ranks is a separate cause.
    if waiting.named_us > 0:
        text += f"; {waiting.named_us / 1e3:.2f} ms of it is waiting for the late ranks"
    if waiting.uneven_us > 0:
        text += f"; {waiting.uneven_us / 1e3:.2f} ms of it is due to uneven iterations"
    return text


def _faster_link(evidence: Evidence) -> str:
    """Describe the saving of a faster link; return an empty text if it is unknown."""
    model = evidence.model
    faster = None if model is None else evidence.predict(gbps=2 * link_gbps(model))
    if faster is None:
        return ""
    saved = faster.measured_us - faster.predicted_us
    return f"; a link of twice the rate would save {saved / 1e3:.2f} ms"


def _figure(value: float) -> str:
    """Format a figure with two digits after the point; below 0.1, with two significant digits."""
    return f"{value:.2f}" if not 0 < value < 0.1 else f"{value:.2g}"


def _parts(summary: Summary) -> str:
    """Return a clause with the parts of the exposed time; empty if they are unknown."""
    parts = (summary.waiting_us, summary.queued_us, summary.transfer_us)
    if any(map(math.isnan, parts)):
        return ""
    waiting, queued, transfer = (f"{us / 1e3:.2f} ms" for us in parts)
    return f"; {waiting} for the last rank, {queued} in queues, {transfer} in transfer"
