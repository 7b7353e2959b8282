"""A VM's RDMA device without address translation of its own."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.doctor.pci_names import has_rdma, pci_name
from workbench.resources import Snapshot, Unknown


def ats_off(snapshot: Snapshot) -> Iterator[Finding]:
    """Find RDMA devices of a VM whose ATS is there and off, though GPUDirect RDMA may be used."""
    pcie, hypervisor = snapshot.pcie, snapshot.host.hypervisor
    if isinstance(pcie, Unknown) or isinstance(hypervisor, Unknown) or hypervisor == "none":
        return
    used = {one.nic for one in pcie.gpudirect if one.possible is not False}
    off = [
        one.address
        for one in pcie.there()
        if one.address in used and has_rdma(one) and one.ats == "off"
    ]
    if not off:
        return
    yield Finding(
        rule="ats_off",
        severity="warning",
        subject=", ".join(pci_name(snapshot, address) for address in off),
        evidence=f"ATS is off at {', '.join(off)}",
        why="In a VM, what passes between GPU and NIC is sent up to the CPU's IOMMU unless the NIC "
        "translates addresses itself: GPUDirect RDMA stays below its full speed.",
        cure="On the host: `mlxconfig -d DEVICE set ATS_ENABLED=true` for each NIC, restart the "
        "host (not the VM alone), and look for `Enable+` in `lspci -vvv | grep ATSCtl`.",
        source="NVIDIA, NCCL User Guide, Troubleshooting; NVIDIA AI Enterprise, Optimizing VM "
        "Configuration for AI Inference, ATS and ACS configuration",
    )
