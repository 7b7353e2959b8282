"""Find causes in a VM's processor and memory: loading, copies, other time, and communication."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from workbench.advisor.evidence import Evidence
from workbench.advisor.late import COMPUTE_RULES
from workbench.advisor.sampled import sampled_lines
from workbench.advisor.training import calibration_of
from workbench.timings.store import Rows, has_flag, phases_unseen
from workbench.timings.verdict import Cause
from workbench.wire import Flag

OTHER_SHARE = 0.1
"""Minimum share of the iteration for which time outside all phases is reported."""
CPU_SHARE = 0.25
"""Minimum share of the iteration for which CPU time of communication is reported. The recording
does not show whether all cores were busy at that time."""
_POSITION_TEXTS = {
    Flag.FORWARD_UNSEEN: "as no module's forward was seen: it includes loading and forward",
    Flag.OTHER_BEFORE_FORWARD: (
        "most of it between optimizer.step() and the next forward, outside any DataLoader"
    ),
    Flag.OTHER_BEFORE_STEP: "most of it between the backward and optimizer.step()",
}


def data_loading(evidence: Evidence) -> Iterator[Cause]:
    """Yield the time that ranks wait for their next batch."""
    loading = evidence.summary.phases_us["data"]
    if not loading > 0:
        return
    yield evidence.cause(
        "data loading",
        f"the next batch takes {loading / 1e3:.2f} ms per iteration",
        "prefetch: DataLoader(num_workers=..., prefetch_factor=...)",
        loading,
        bound=True,
        times_us=evidence.per_iteration_us("data"),
    )


def copies(evidence: Evidence) -> Iterator[Cause]:
    """Yield the time of copies from host to device."""
    spent = evidence.summary.phases_us["copy"]
    if not spent > 0:
        return
    text = f"copies from host to device take {spent / 1e3:.2f} ms per iteration"
    # Not `evidence.fabric`: a single rank has no collectives, but a calibration of its copies.
    fabric = calibration_of(evidence.training)
    devices = [] if fabric is None else list(fabric.devices.values())
    rates = [device["PCIe"] for device in devices if "PCIe" in device]
    measure = "" if rates else "the rate of such copies, with %fabric calibrate"
    if rates:
        text += f"; a GPU copies {min(rates):.1f} GB/s from pinned memory"
    doctor_text, doctor_fixes = evidence.findings(COMPUTE_RULES)
    fix = (
        "let them overlap with compute: DataLoader(pin_memory=True), and "
        "batch.to(device, non_blocking=True) for the next batch"
    )
    yield evidence.cause(
        "copies from host to device",
        text + doctor_text,
        f"{fix}; {doctor_fixes}" if doctor_fixes else fix,
        spent,
        bound=True,
        times_us=evidence.per_iteration_us("copy"),
        measure=measure,
    )


def other_time(evidence: Evidence) -> Iterator[Cause]:
    """Yield time outside all phases, with its lines, or with its position in the iteration."""
    summary = evidence.summary
    rows = evidence.rows
    other = summary.phases_us["other"]
    # The time of compiled iterations in no phase is unknown.
    compiled = phases_unseen(rows)
    if not other >= OTHER_SHARE * summary.iteration_us or compiled.mean() > 0.5:
        return
    position = _position_text(evidence)
    text = f"{other / 1e3:.2f} ms per iteration are in no phase of training, {position}"
    fix = (
        "check what the loop does there: a pause, logging, a checkpoint, an evaluation, or a data "
        "source other than a DataLoader (a DataLoader with num_workers prefetches)"
    )
    measure = ""
    if summary.unheard:
        text += "; communication that is not timed may be included"
    lines = sampled_lines(evidence.samples)
    if lines:
        text += f"; sampled: {lines}"
    else:
        fix += ". To see the lines, run %explain --sample, then the cell again"
        measure = "the lines of Python, with %explain --sample"
    yield evidence.cause(
        "time in no phase (other)",
        text,
        fix,
        other,
        bound=True,
        times_us=evidence.per_iteration_us("other"),
        measure=measure,
    )


def _position_text(evidence: Evidence) -> str:
    """Describe the position in the iteration of most of the time in no phase."""
    rows: Rows = evidence.warm
    half = rows["other_ns"].sum() / 2
    for flag, words in _POSITION_TEXTS.items():
        if rows["other_ns"][has_flag(rows, flag)].sum() > half:
            return words
    return "such as an evaluation between the steps"


def cpu_of_communication(evidence: Evidence) -> Iterator[Cause]:
    """Yield the CPU time of communication on VMs where compute uses all cores and waits for it."""
    spent = evidence.summary.progress.communication_cpu_s * 1e6
    overlapped = min(spent, evidence.summary.overlapped_us)
    if not overlapped >= CPU_SHARE * evidence.summary.iteration_us:
        return
    ranks_per_vm = Counter(info.vm for info in evidence.ranks)
    cpus_by_vm = {
        info.vm: cpus
        for info in evidence.ranks
        if info.gpu == "CPU"
        and (snapshot := evidence.snapshots.get(info.vm)) is not None
        and isinstance(cpus := snapshot.host.cpus, int)
        and info.threads * ranks_per_vm[info.vm] >= cpus
    }
    if not cpus_by_vm:  # Communication has a core, or the number of cores is unknown.
        return
    vm, cpus = next(iter(cpus_by_vm.items()))
    threads = next(info.threads for info in evidence.ranks if info.vm == vm) * ranks_per_vm[vm]
    text = (
        f"the backend's threads use {spent / 1e3:.2f} ms of CPU time per iteration, of which up "
        f"to {overlapped / 1e3:.2f} ms while the model computes; on {vm}, {threads} threads of "
        f"PyTorch have {cpus} cores"
    )
    fix = (
        "leave a core for communication: torch.set_num_threads() or OMP_NUM_THREADS of one less, "
        "or fewer ranks per VM; RDMA needs less CPU time than TCP"
    )
    measure = "whether all cores are busy during the training, with `top` on that VM"
    name = "CPU time of communication"
    yield evidence.cause(name, text, fix, overlapped, bound=True, measure=measure)
