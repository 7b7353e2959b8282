"""GPUDirect RDMA on some VMs only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from workbench.doctor.across.odd import odd
from workbench.doctor.finding import Finding
from workbench.doctor.pci_names import has_rdma
from workbench.resources import Snapshot, Unknown


def gpudirect_unlike(snapshots: Mapping[str, Snapshot]) -> Iterator[Finding]:
    """Find VMs where fewer GPUs have an RDMA port near enough than elsewhere."""
    for found in odd(snapshots, _reach):
        yield Finding(
            rule="gpudirect_unlike",
            severity="warning",
            subject=found.vms,
            evidence=found.evidence,
            why="The ranks whose GPU has no near port copy every gradient through host memory; "
            "all others wait for them.",
            cure="Compare the matrices of `workbench resources` on those VMs: another place of "
            "GPU or port, another topology file, or NCCL_NET_GDR_LEVEL on one VM only.",
            source="NVIDIA, NCCL User Guide, Environment Variables, NCCL_NET_GDR_LEVEL",
        )


def _reach(snapshot: Snapshot) -> str | None:
    pcie = snapshot.pcie
    if isinstance(pcie, Unknown):
        return None
    ports = {one.address for one in pcie.there() if has_rdma(one)}
    judged = [one for one in pcie.gpudirect if one.nic in ports]
    gpus = {one.gpu for one in judged}
    if not gpus or any(isinstance(one.possible, Unknown) for one in judged):
        return None
    near = {one.gpu for one in judged if one.possible is True}
    return f"GPUDirect RDMA for {len(near)} of {len(gpus)} GPUs"
