"""PCIe cards joined by NVLink bridges in pairs, and more than one pair."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.doctor.gpu_links import links_up
from workbench.doctor.several import named
from workbench.resources import Gpu, Snapshot


def bridged_pairs(snapshot: Snapshot) -> Iterator[Finding]:
    """Find several pairs of GPUs, each with NVLinks to its partner and to nobody else."""
    partner = {gpu.pci_address: _partner(gpu) for gpu in snapshot.gpus}
    index = {gpu.pci_address: gpu.index for gpu in snapshot.gpus}
    pairs = sorted(
        (index[one], index[other])
        for one, other in partner.items()
        if other is not None and partner.get(other) == one and index[one] < index[other]
    )
    if len(pairs) < 2:
        return
    joined = ", ".join(f"{first}-{second}" for first, second in pairs)
    yield Finding(
        rule="bridged_pairs",
        severity="info",
        subject=named(one for pair in pairs for one in pair),
        evidence=f"NVLink joins the pairs {joined}, and nothing joins the pairs to one another",
        why="A bridge joins two cards: an allreduce over all of them crosses PCIe between the "
        "pairs, and is as fast as that.",
        cure="Train on one pair where that is enough, such as "
        f"`CUDA_VISIBLE_DEVICES={pairs[0][0]},{pairs[0][1]}`; for all GPUs at NVLink's speed ask "
        "for a board with NVSwitch (HGX).",
        source="NVIDIA, NVLink (nvidia.com): A100 PCIe in two-GPU configurations",
    )


def _partner(gpu: Gpu) -> str | None:
    up = links_up(gpu)
    peers = {link.peer_pci_address for link in up if link.peer == "gpu"}
    if len(peers) != 1 or any(link.peer != "gpu" for link in up):
        return None
    (only,) = peers
    return only if isinstance(only, str) else None
