"""GPUDirect RDMA is within reach, and nothing opens GPU memory to the NIC."""

from __future__ import annotations

import re
from collections.abc import Iterator

from workbench.doctor.finding import Finding, Severity
from workbench.doctor.pci_names import has_rdma, named_gpus
from workbench.resources import Snapshot, Unknown
from workbench.resources.gpus.vgpu import VgpuProfile

_DMA_BUF = (5, 12)  # the first Linux whose RDMA takes dma-buf; distributions may have it earlier


def peer_memory_missing(snapshot: Snapshot) -> Iterator[Finding]:
    """Find GPUs near an NVIDIA NIC where there is neither nvidia_peermem nor dma-buf."""
    gpus = _near(snapshot)
    lacking = _lacking(snapshot)
    if not gpus or lacking is None:
        return
    severity, why_not = lacking
    yield Finding(
        rule="peer_memory_missing",
        severity=severity,
        subject=named_gpus(snapshot, gpus),
        evidence=f"an RDMA port is near enough, but nvidia_peermem is not loaded, and {why_not}",
        why="NCCL then uses no GPUDirect RDMA: what goes to other VMs is copied through host "
        "memory, which costs CPU time and bandwidth.",
        cure="`sudo modprobe nvidia_peermem` (after NVIDIA's network driver, DOCA-OFED; "
        "`/etc/modules-load.d/nvidia-peermem.conf` keeps it), or NVIDIA's open kernel modules on "
        "Linux 5.12 or newer, which use dma-buf.",
        source="NVIDIA, GPU Operator documentation, GPUDirect RDMA; NVIDIA driver README, "
        "GPUDirect RDMA Peer Memory Client",
    )


def _near(snapshot: Snapshot) -> list[str]:
    """Give the addresses of GPUs that may use GPUDirect RDMA with a port of NVIDIA's."""
    pcie = snapshot.pcie
    if isinstance(pcie, Unknown):
        return []
    nvidias = {nic.pci_address for nic in snapshot.nics if str(nic.driver).startswith("mlx")}
    ports = {one.address for one in pcie.there() if has_rdma(one)} & nvidias
    may = {
        gpu.pci_address
        for gpu in snapshot.gpus
        if gpu.form in ("whole", "passthrough")
        or (isinstance(gpu.vgpu, VgpuProfile) and gpu.vgpu.gpudirect is True)
    }
    near = [one.gpu for one in pcie.gpudirect if one.possible is True and one.nic in ports]
    return [gpu for gpu in dict.fromkeys(near) if gpu in may]


def _lacking(snapshot: Snapshot) -> tuple[Severity, str] | None:
    host = snapshot.host
    if host.peer_memory_modules != () or isinstance(host.nvidia_module, Unknown):
        return None
    if host.nvidia_module == "proprietary":
        return "warning", "the proprietary kernel module is, which has no dma-buf"
    release = re.match(r"(\d+)\.(\d+)", str(host.kernel))
    if release is None or (int(release[1]), int(release[2])) >= _DMA_BUF:
        return None
    return "info", f"Linux {host.kernel} may have no dma-buf for RDMA (5.12 has)"
