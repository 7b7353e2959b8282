"""A100 vGPUs that lost NVLink, as they do to unified memory."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.doctor.several import first_of
from workbench.doctor.unified_memory import shows_unified_memory
from workbench.resources import Snapshot, Unknown


def unified_memory_on(snapshot: Snapshot) -> Iterator[Finding]:
    """Find pairs of whole A100 vGPUs that show PIX, and no peer-to-peer over NVLink."""
    if isinstance(snapshot.gpu_pairs, Unknown):
        return
    gpus = {gpu.index: gpu for gpu in snapshot.gpus}
    pairs = [
        pair
        for pair in snapshot.gpu_pairs
        if {pair.first, pair.second} <= set(gpus)
        and shows_unified_memory(pair, gpus[pair.first], gpus[pair.second])
    ]
    if not pairs:
        return
    named = [f"{pair.first}-{pair.second}" for pair in pairs]
    yield Finding(
        rule="unified_memory_on",
        severity="warning",
        subject=f"{'GPUs' if len(named) == 1 else 'pairs of GPUs'} {first_of(named, 8)}",
        evidence=f"peer-to-peer over NVLink is {pairs[0].p2p_nvlink}, and the driver shows PIX, "
        "though their profiles permit NVLink: that is the sign of unified memory switched on "
        "(the guest cannot read that switch; one that cannot reach the other's board looks alike)",
        why="On A100, unified memory takes NVLink away from vGPUs: gradients between them go "
        "through host memory.",
        cure="In the VM's settings on the host, for each vGPU: "
        "`pciPassthru<n>.cfg.enable_uvm = 0` in vSphere, `enable_uvm=0` in the vGPU's "
        "vgpu_params under KVM. If it is off, ask whether the vGPUs are from one device group on "
        "GPUs that NVLink joins.",
        source="NVIDIA AI Enterprise, Peer-To-Peer (P2P) CUDA Transfers, known issues",
    )
