"""Find stragglers, pauses of VMs, and links that are slow for a while."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from workbench.advisor.communication import NETWORK_RULES
from workbench.advisor.evidence import Evidence
from workbench.advisor.sampled import sampled_lines
from workbench.resources import Snapshot
from workbench.resources.gpus.records import Gpu
from workbench.resources.gpus.vgpu import VgpuProfile
from workbench.timings.pauses import only_rank
from workbench.timings.ring_delays import UNKNOWN
from workbench.timings.verdict import Cause

MIN_RANK_SHARE = 0.75
"""Minimum share of the waiting for late ranks that one rank causes, for this rank to be named."""
MIN_SLOWDOWN = 1.25
"""Compute varies if the slow iterations take at least this many times the usual time."""
MIN_VARYING_SHARE = 0.05
"""Compute of varying speed is a cause if it costs at least this share of the iteration."""
COMPUTE_RULES = frozenset({
    "throttled", "vgpu_unlicensed", "licences_unlike", "gpus_unlike", "ecc_errors",
    "pcie_link_reduced", "gpu_on_other_numa_node", "clock_source", "machines_unlike",
    "memory_limit", "ecc_unlike", "drivers_unlike",
})  # fmt: skip
"""Rules of the doctor with findings that explain slow compute or copies."""
_FIXES = {
    "other": "check what it does between a step and the next forward, or before a step: "
    "a checkpoint, logging, a data source other than a DataLoader",
    "slow data": "its loader is slower than the others': check its disk, workers and file share",
    "slow compute": "it computes more, or on a slower or busier VM: check its batches and load",
}
_STEAL = (
    "what the host takes from a VM, during the training: column st of `vmstat 1`; and other "
    "processes there, with `top`"
)


def late_ranks(evidence: Evidence) -> Iterator[Cause]:
    """Yield late ranks, slow links and pauses of VMs, each for its share of the iterations."""
    for straggler in evidence.stragglers:
        if straggler["vm"]:  # The lengths of a pause are totals, not times per iteration.
            yield _pause(evidence, straggler)
            continue
        length = straggler["last_iteration"] - straggler["first_iteration"] + 1
        share = length / max(evidence.summary.iterations, length)
        when = "throughout" if straggler["how_often"] == "always" else straggler["how_often"]
        # A rank that is late after the reduction also delays the next iteration.
        is_affected = (evidence.warm["iteration"] >= straggler["first_iteration"]) & (
            evidence.warm["iteration"] <= straggler["last_iteration"] + 1
        )
        affected = Evidence(evidence.training, evidence.timings, evidence.warm[is_affected])
        times_us = affected.per_iteration_us("exposed") if is_affected.any() else None
        if straggler["rank"] < 0:  # a slow link
            excess = straggler["excess_us"]
            text, fixes = evidence.findings(NETWORK_RULES)
            yield evidence.cause(
                "a slow link",
                f"{straggler['kind']}, {when}: collectives take {excess / 1e3:.2f} ms longer{text}",
                fixes or "check the NICs' counters and other users of the network",
                excess * share,
                bound=True,
                times_us=times_us,
                measure="the rate of each pair of VMs, with %fabric matrix",
            )
            continue
        text, fix = _lateness_and_fix(evidence, straggler)
        yield evidence.cause(
            f"waiting for rank {straggler['rank']}",
            f"{straggler['kind']}, {when}: {text}",
            fix,
            straggler["late_us"] * share,
            bound=True,
            times_us=times_us,
        )


def _pause(evidence: Evidence, straggler: dict[str, Any]) -> Cause:
    """Return a pause of a VM. Its cost is the time for which the other VMs waited."""
    first = straggler["first_iteration"]
    last = straggler["last_iteration"]
    waited_us = straggler["late_us"]
    iterations = f"iteration {first}" if first == last else f"iterations {first} to {last}"
    return evidence.cause(
        f"pause of VM {straggler['vm']} (such as vMotion, snapshot or suspend)",
        f"in {iterations} all ranks of {straggler['vm']} stopped at once for "
        f"{straggler['excess_us'] / 1e3:.0f} ms, and the others waited {waited_us / 1e3:.0f} ms",
        f"ask the administrator for events of {straggler['vm']} at that time (vMotion by DRS, "
        "snapshot, suspend, backup), and to exclude it from them while it trains; if there were "
        "none, check what else uses its CPUs",
        waited_us / max(evidence.summary.iterations, 1),
        bound=True,
    )


def _lateness_and_fix(evidence: Evidence, straggler: dict[str, Any]) -> tuple[str, str]:
    """Return evidence and fix of a late rank."""
    rank = straggler["rank"]
    kind = straggler["kind"]
    text = _lateness(straggler["phase"], straggler["excess_us"], straggler["late_us"])
    if straggler["phase"] == "other" and rank in evidence.samples:
        text += f"; sampled: {sampled_lines({0: evidence.samples[rank]})}"
    fix = _FIXES.get(straggler["phase"]) or _FIXES.get(
        kind, "see timings.stragglers() and timings.arrivals()"
    )
    is_once = straggler["first_iteration"] == straggler["last_iteration"]
    vm_of_one_rank = only_rank(rank, evidence.vms) if is_once else ""
    if vm_of_one_rank:
        text += (
            f"; rank {rank} is the only one of VM {vm_of_one_rank}, so a pause of the VM "
            "(such as vMotion, snapshot or suspend) would look the same"
        )
    if kind == "slow compute" or straggler["phase"] == "copy":
        vm = next((info.vm for info in evidence.ranks if info.rank == rank), "")
        doctor_text, doctor_fixes = evidence.findings(COMPUTE_RULES, vm) if vm else ("", "")
        shared = _shared_gpus(evidence.snapshots.get(vm)) if vm else []
        if shared:
            doctor_text += f"; on {vm}, {_shared_words(shared)}"
        text += doctor_text
        if doctor_fixes:
            fix = f"{fix}; {doctor_fixes}"
    return text, fix


def _lateness(phase: str, excess_us: float, late_us: float) -> str:
    """Describe which phase of a rank takes longer, and how long the other ranks wait."""
    waiting_text = f"and the others wait {late_us / 1e3:.2f} ms for it"
    if phase == UNKNOWN:
        return (
            f"its gradients are ready {excess_us / 1e3:.2f} ms later than the others', which wait "
            "for it, but none of its phases takes that much longer"
        )
    phase_text = "time outside all phases (other)" if phase == "other" else phase
    return f"its {phase_text} takes {excess_us / 1e3:.2f} ms longer, {waiting_text}"


def uneven(evidence: Evidence) -> Iterator[Cause]:
    """Yield the time of waiting for ranks that are late now and then, or in turn."""
    waiting = evidence.waiting
    if not waiting.uneven_us:
        return
    is_one_rank = waiting.rank_share >= MIN_RANK_SHARE
    saving = waiting.rank_us if is_one_rank else waiting.uneven_us
    text = (
        f"the others wait {saving / 1e3:.2f} ms per iteration for rank {waiting.rank} "
        f"({waiting.rank_share:.0%} of such waiting), which is late by varying times"
        if is_one_rank
        else f"ranks wait {saving / 1e3:.2f} ms per iteration for the last one, which is not "
        "always the same one"
    )
    yield evidence.cause(
        "uneven iterations",
        text,
        "give all ranks the same work in each iteration: batches of the same length, and "
        "checkpoints and logging outside the loop or on all ranks at once. "
        "see timings.arrivals()",
        saving,
        bound=True,
        measure="" if _varying_us(evidence) is None else _STEAL,
    )


def noisy_neighbour(evidence: Evidence) -> Iterator[Cause]:
    """Yield forward and backward that take longer in some iterations, on all ranks in turn.

    A rank that is slower than the others is a separate cause. Waiting for ranks in turn is also a
    separate cause, so it is subtracted.
    """
    longer = _varying_us(evidence)
    if longer is None or evidence.stragglers or not len(evidence.warm):
        return
    saving = float(longer.mean()) - evidence.waiting.uneven_us
    if saving < MIN_VARYING_SHARE * evidence.summary.iteration_us:
        return
    slow = longer > (MIN_SLOWDOWN - 1) * np.median(evidence.per_iteration_us("forward", "backward"))
    text = (
        f"forward and backward take {longer[slow].mean() / 1e3:.2f} ms longer than usual in "
        f"{slow.mean():.0%} of the iterations"
    )
    shared = [
        f"on {vm}, {_shared_words(gpus)}"
        for vm, snapshot in evidence.snapshots.items()
        if (gpus := _shared_gpus(snapshot))
    ]
    fix = "keep other processes off the cores of the ranks, or give all iterations equal batches"
    if shared:
        text += f"; {'; '.join(shared)}"
        fix = "ask for vGPUs with the entire frame buffer, or a host without other VMs on its GPUs"
    yield evidence.cause(
        "compute of varying speed",
        text,
        fix,
        saving,
        bound=True,
        times_us=longer,
        measure="" if shared else _STEAL,
    )


def _varying_us(evidence: Evidence) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """Return by how many us compute exceeds its median in each iteration; None if it is steady."""
    spent = evidence.per_iteration_us("forward", "backward")
    usual = float(np.median(spent))
    longer = np.maximum(spent - usual, 0.0)
    slow = longer > (MIN_SLOWDOWN - 1) * usual
    if not usual > 0 or slow.sum() < 2 or longer[slow].sum() < longer.sum() / 2:
        return None
    return np.where(slow, longer, 0.0)


def _shared_gpus(snapshot: Snapshot | None) -> list[Gpu]:
    """Return the vGPUs that other VMs may use in turn: time-sliced, with a part of the memory."""
    return [
        gpu
        for gpu in (snapshot.gpus if snapshot is not None else ())
        if gpu.form == "vgpu"
        and isinstance(gpu.vgpu, VgpuProfile)
        and not gpu.vgpu.mig_backed
        and gpu.vgpu.whole_frame_buffer is False
    ]


def _shared_words(gpus: list[Gpu]) -> str:
    profiles = ", ".join(sorted({str(gpu.vgpu_profile) for gpu in gpus}))
    return f"other VMs may use the GPU in turn (time-sliced profile {profiles})"
