"""Why training waits for gradients: queueing, bytes, latency, or no calibration to say which."""

from __future__ import annotations

import math
from collections.abc import Iterator

from workbench.advisor.evidence import Evidence
from workbench.advisor.what_if import link_gbps
from workbench.fabric.overlap import CYCLE_US
from workbench.timings import Summary
from workbench.timings.verdict import Cause

SLOW_GBPS = 1.0
"""Rate of a slow link, in Gbit/s: if the bytes take little time even at this rate, latency is
the cause."""
LITTLE = 0.2
"""Bytes that take less than this share of a duration are not its cause."""
FEW_BUFFERS = 2
"""Fusion cannot save much of so few buffers."""
LONGEST_NEGOTIATION_US = 10_000.0
"""A negotiation that takes longer has waited for a long cycle, or for a busy core."""
MOSTLY = 0.5
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
"""Rules of the doctor whose findings explain slow communication."""
_SLOW_LINK = (
    f"most of it is the transfer of few bytes, far below {SLOW_GBPS:g} Gbit/s: check the link's "
    f"rate and latency, its other users, and the load of the cores; until then, {LESS_OFTEN}"
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
_CYCLE_CURE = (
    "remove HOROVOD_CYCLE_TIME, or set it to 1 (ms), in the environment of the ranks before "
    "Horovod starts"
)


def exposed_of(evidence: Evidence) -> float:
    """Return how long training waits for gradients that no late rank delays; 0 for one rank."""
    summary, waiting = evidence.summary, evidence.waiting
    exposed = summary.exposed_us - summary.messages_us
    if not summary.bytes or not exposed > 0 or evidence.rows["world_size"].max() < 2:
        return 0.0
    return max(0.0, exposed - waiting.named_us - waiting.uneven_us)


def fixed_us(evidence: Evidence) -> float:
    """Return the time of communication that does not depend on its bytes, if it is the cause.

    That is if a few buffers carry all gradients, and their latency, negotiation and cycles take
    most of the time that training waits, and about as long as it computes. Otherwise 0.
    """
    same, exposed = evidence.predict(), exposed_of(evidence)
    if evidence.model is None or same is None or not exposed:
        return 0.0
    model, count = evidence.model.model, len(same.simulated.buffer_bytes)
    fixed = count * (model.fixed_us + model.negotiation_us) + min(model.cycle_us, CYCLE_US) / 2
    waited = min(exposed, evidence.model.exposed_us)  # medians: some iterations have a pause
    computed = evidence.model.iteration_us - evidence.model.exposed_us
    few = count <= FEW_BUFFERS and model.cycle_us <= CYCLE_US
    few &= model.negotiation_us <= LONGEST_NEGOTIATION_US
    return fixed if few and fixed >= MOSTLY * max(waited, computed) else 0.0


def queueing(evidence: Evidence) -> Iterator[Cause]:
    """Yield the time in which gradients wait and nothing is transferred."""
    exposed, queued = exposed_of(evidence), evidence.summary.queued_us
    if not exposed or math.isnan(queued) or fixed_us(evidence):
        return
    queued = min(queued, exposed)
    text, model = _QUEUED.format(queued / 1e3), evidence.model
    short = None
    if model is not None and model.fuses and model.model.cycle_us > CYCLE_US:
        short = evidence.predict(cycle_time_ms=CYCLE_US / 1e3)
    if model is None or short is None or short.measured_us - short.predicted_us < queued / 2:
        yield evidence.cause("queueing", text, _QUEUED_CURE, queued, bound=True)
        return
    text += f"; cycles take about {model.model.cycle_us / 1e3:.0f} ms"
    yield evidence.predicted("queueing", text, _CYCLE_CURE, short)


def sending(evidence: Evidence) -> Iterator[Cause]:
    """Yield what sending the gradients costs, of which a part is in the iteration."""
    exposed, summary = exposed_of(evidence), evidence.summary
    if not math.isnan(summary.queued_us):
        exposed -= min(summary.queued_us, exposed)
    if not summary.exposed_us > 0 or not exposed_of(evidence):
        return
    text, fabric = _described(evidence), evidence.fabric
    found, cures = evidence.findings(NETWORK_RULES)
    cures = f"; {cures}" if cures else ""
    if fabric is None:
        why = evidence.fabric_unknown
        text += f"; the fabric's bandwidth is unknown: {why}{found}"
        cure = "hide it behind compute (a larger batch), or send less (fp16 compression)"
        if summary.bytes * 8 / (SLOW_GBPS * 1e3) < LITTLE * exposed:
            cure = f"this time is not due to the few bytes: {LESS_OFTEN}"
            if summary.transfer_us >= exposed / 2:
                cure = _SLOW_LINK
        name, measure = "exposed communication", "the fabric's rate, with %fabric calibrate"
        yield evidence.cause(name, text, cure + cures, exposed, bound=True, measure=measure)
        return
    should = fabric.predict_us(summary.bytes)
    text += (
        f"; on this fabric such an allreduce takes {should / 1e3:.2f} ms "
        f"(\u00b1 {fabric.error:.0%}), of which {fabric.fixed_us / 1e3:.2f} ms for any size"
    )
    if should - fabric.fixed_us < LITTLE * should:
        if fixed_us(evidence):
            return
        saved = min(exposed, fabric.fixed_us)
        yield evidence.cause("latency of communication", text, LESS_OFTEN, saved, bound=True)
        return
    cure = "halve the bytes: hvd.DistributedOptimizer(compression=hvd.Compression.fp16)"
    halved = evidence.predict(compression="fp16")
    if halved is not None:
        text += _faster_link(evidence)
        yield evidence.predicted("bytes on the wire", text, cure, halved)
        return
    saved = min(exposed, should - fabric.predict_us(summary.bytes / 2))
    error_us = min(saved, fabric.error * should)
    yield evidence.cause("bytes on the wire", text, cure, saved, error_us=error_us)


def _described(evidence: Evidence) -> str:
    """Return the exposed time with its bytes, its rate and its parts, in words."""
    summary, waiting = evidence.summary, evidence.waiting
    exposed = summary.exposed_us - summary.messages_us
    text = (
        f"training waits {exposed / 1e3:.2f} ms per iteration for gradients "
        f"({exposed / summary.iteration_us:.0%}): {_figure(summary.bytes / 1e6)} MB at "
        f"{_figure(summary.busbw_gbps)} Gbit/s bus bandwidth{_parts(summary)}"
    )
    # waiting for late ranks is a cause of its own
    if waiting.named_us > 0:
        text += f"; {waiting.named_us / 1e3:.2f} ms of it is waiting for the late ranks"
    if waiting.uneven_us > 0:
        text += f"; {waiting.uneven_us / 1e3:.2f} ms of it is due to uneven iterations"
    return text


def _faster_link(evidence: Evidence) -> str:
    """Return what a faster link would save, in words; empty if it is unknown."""
    model = evidence.model
    faster = None if model is None else evidence.predict(gbps=2 * link_gbps(model))
    if faster is None:
        return ""
    saved = faster.measured_us - faster.predicted_us
    return f"; a link of twice the rate would save {saved / 1e3:.2f} ms"


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
