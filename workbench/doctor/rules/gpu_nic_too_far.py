"""GPUs without a NIC that is near enough for GPUDirect RDMA."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.doctor.pci_names import has_rdma, named_gpus, pci_name
from workbench.doctor.several import first_of
from workbench.resources import Snapshot, Unknown
from workbench.resources.pcie.records import GpuDirect

_SETTING = "NCCL_NET_GDR_LEVEL"
_DISTANCES = ("PIX", "PXB", "PHB", "SYS")


def gpu_nic_too_far(snapshot: Snapshot) -> Iterator[Finding]:
    """Find GPUs that are too far from every RDMA port of this VM, by NCCL's rule.

    One near port is enough for a GPU: on a board of eight most are far from most.
    """
    if isinstance(snapshot.pcie, Unknown):
        return
    rdma = {one.address for one in snapshot.pcie.there() if has_rdma(one)}
    by_gpu: dict[str, list[GpuDirect]] = {}
    for one in snapshot.pcie.gpudirect:
        if one.nic in rdma:
            by_gpu.setdefault(one.gpu, []).append(one)
    found: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for gpu, judged in by_gpu.items():
        if all(one.possible is False for one in judged):
            nearest = min((one.why.split(";")[0] for one in judged), key=_how_far)
            to = tuple(pci_name(snapshot, one.nic) for one in judged if one.why.startswith(nearest))
            found.setdefault((nearest, to), []).append(gpu)
    for (nearest, to), gpus in found.items():
        yield _finding(nearest, first_of(to), named_gpus(snapshot, gpus))


def _how_far(why: str) -> int:
    """Rank a reason of `GpuDirect`, which begins with the distance."""
    word = why.split()[0]
    return _DISTANCES.index(word) if word in _DISTANCES else len(_DISTANCES)


def _finding(nearest: str, nics: str, gpus: str) -> Finding:
    level = nearest.split()[0]
    return Finding(
        rule="gpu_nic_too_far",
        severity="warning",
        subject=gpus,
        evidence=f"no RDMA port is near enough; the nearest: {nics}, where {nearest}",
        why="NCCL uses no GPUDirect RDMA here: gradients to other VMs are copied through host "
        "memory.",
        cure=f"Take {_SETTING} out of the environment and out of nccl.conf, or set it to {level}."
        if _SETTING in nearest
        else "In a VM whose host has GPU and port under one switch: `NCCL_TOPO_FILE=FILE` with "
        f"the true tree. Else `{_SETTING}={level}` makes NCCL use it all the same: measure with "
        "and without. Else ask for a VM whose ports are near its GPUs.",
        source=f"NVIDIA, NCCL User Guide, Environment Variables, {_SETTING}",
    )
