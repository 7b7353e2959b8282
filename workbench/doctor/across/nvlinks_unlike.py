"""NVLink between the GPUs of some VMs only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from workbench.doctor.across.odd import odd, same
from workbench.doctor.finding import Finding
from workbench.doctor.gpu_links import links_of, links_up
from workbench.resources import Snapshot, Unknown


def nvlinks_unlike(snapshots: Mapping[str, Snapshot]) -> Iterator[Finding]:
    """Find VMs whose GPUs have another number of NVLinks up, or other answers on peer-to-peer."""
    for look in (_links, _peers):
        for found in odd(snapshots, look):
            yield Finding(
                rule="nvlinks_unlike",
                severity="warning",
                subject=found.vms,
                evidence=found.evidence,
                why="Within the VM that has less, gradients take the way over PCIe or host memory; "
                "the ranks of all others wait for it.",
                cure="`nvidia-smi nvlink --status` and `nvidia-smi topo -m` on those VMs; for "
                "vGPUs ask whether all come from device groups of one size with NVLink.",
                source="NVIDIA, NCCL User Guide, Troubleshooting, GPU-to-GPU communication",
            )


def _links(snapshot: Snapshot) -> str | None:
    counts = [len(links_up(gpu)) for gpu in snapshot.gpus if links_of(gpu)]
    words = same([str(count) for count in sorted(counts)])
    return None if words is None else f"{words} NVLinks up per GPU"


def _peers(snapshot: Snapshot) -> str | None:
    pairs = snapshot.gpu_pairs
    if isinstance(pairs, Unknown) or not pairs:
        return None
    said = [pair.p2p_nvlink for pair in pairs]
    if any(isinstance(one, Unknown) for one in said):
        return None
    reach = sum(one == "ok" for one in said)
    return f"NVLink between {'all' if reach == len(said) else reach or 'no'} pairs of GPUs"
