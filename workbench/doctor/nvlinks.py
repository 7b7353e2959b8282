"""Rules about NVLinks, the NVSwitch fabric and peer-to-peer between GPUs of one VM."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.facts import gpu_names, pair_names
from workbench.doctor.rule import Case, each_gpu, group_gpus, rule
from workbench.doctor.vgpus import suggests_unified_memory
from workbench.resources import Gpu, Snapshot, Unknown
from workbench.resources.gpus.records import Fabric, NvLinks
from workbench.resources.gpus.vgpu import VgpuProfile

# Number of links by the beginning of the name that the driver reports. Every GPU of these models
# has all links of its generation (NVIDIA's data sheets: V100 6, A100 12, H100 18).
_LINKS_OF_MODEL = {
    "Tesla V100-SXM": 6,
    "NVIDIA A100-SXM": 12,
    "A100-SXM": 12,
    "NVIDIA H100 80GB HBM3": 18,
}


@rule(
    "warning",
    why="An allreduce inside this VM is as fast as the GPU with the fewest links. If the VM has "
    "only some GPUs of a board, the links to the other GPUs may be off on purpose.",
    fix="`nvidia-smi nvlink --status` and `nvidia-smi nvlink -e` (errors per link); search "
    "`dmesg` for Xid 74. Check that all bridges are seated. Ask the administrator to reset the "
    "GPU or restart the host.",
    source="NVIDIA, XID Errors, Xid catalog",
)
def nvlink_down(snapshot: Snapshot) -> list[Case]:
    """Find GPUs with links that are down, in a VM that uses NVLink.

    If no link of any GPU is up, the GPUs may simply have no NVLink bridge.
    """
    in_use = any(gpu.links_up for gpu in snapshot.gpus)
    return group_gpus(snapshot, _links_down) if in_use else []


def _links_down(gpu: Gpu) -> Case | None:
    links = gpu.known_links
    down = [str(link.number) for link in links if link.state == "down"]
    if not down:
        return None
    return Case(f"NVLinks that are down: {', '.join(down)} ({len(down)} of {len(links)})")


@rule(
    "warning",
    why="Each missing link takes its share of the bandwidth to the other GPUs.",
    fix="`nvidia-smi nvlink --status`; search `dmesg` for Xid 74, and ask the administrator "
    "whether links were switched off for this VM (which has only some GPUs of a board) or have "
    "failed.",
    source="NVIDIA, data sheets of V100, A100 and H100; XID Errors, Xid catalog",
)
@each_gpu
def nvlink_fewer_than_model(gpu: Gpu) -> Case | None:
    """Find SXM GPUs that list fewer links, up or down, than their model has."""
    if not isinstance(gpu.name, str) or gpu.form not in ("whole", "passthrough"):
        return None
    names = (name for name in _LINKS_OF_MODEL if gpu.name.startswith(name))
    expected = _LINKS_OF_MODEL.get(next(names, ""), 0)
    listed = len(gpu.known_links)  # 0 if the links are unknown
    if listed == 0 or listed >= expected:
        return None
    return Case(f"{listed} NVLinks, where {gpu.name} has {expected}")


@rule(
    "info",
    why="A bridge joins two cards: an allreduce over all of them crosses PCIe between the "
    "pairs, and is only as fast as that.",
    source="NVIDIA, NVLink (nvidia.com): A100 PCIe in two-GPU configurations",
)
def bridged_pairs(snapshot: Snapshot) -> Iterator[Case]:
    """Find several pairs of GPUs, each GPU with NVLinks to its partner only."""
    partner = {gpu.pci_address: _partner(gpu) for gpu in snapshot.gpus}
    index = {gpu.pci_address: gpu.index for gpu in snapshot.gpus}
    pairs = sorted(
        (index[address], index[other])
        for address, other in partner.items()
        if other is not None and partner.get(other) == address and index[address] < index[other]
    )
    if len(pairs) < 2:
        return
    pair_texts = ", ".join(f"{first}-{second}" for first, second in pairs)
    yield Case(
        f"NVLink joins the pairs {pair_texts}, and nothing joins the pairs to one another",
        gpu_names(index for pair in pairs for index in pair),
        fix="Train on one pair if that is enough, for example with "
        f"`CUDA_VISIBLE_DEVICES={pairs[0][0]},{pairs[0][1]}`; for all GPUs at NVLink's speed ask "
        "for a board with NVSwitch (HGX).",
    )


def _partner(gpu: Gpu) -> str | None:
    """Return the PCI address of the only GPU that a GPU's NVLinks lead to."""
    up = gpu.links_up
    peers = {link.peer_pci_address for link in up if link.peer == "gpu"}
    if len(peers) != 1 or any(link.peer != "gpu" for link in up):
        return None
    (only,) = peers
    return only if isinstance(only, str) else None


@rule(
    "error",
    why="CUDA does not start before Fabric Manager has configured the NVSwitches "
    "(cudaErrorSystemNotReady); a GPU that fails to register has no peer-to-peer over NVLink.",
    fix="If the VM has all GPUs and the NVSwitches: `sudo systemctl restart "
    "nvidia-fabricmanager`, in the version of the driver. If the host has the NVSwitches: ask "
    "the administrator to check Fabric Manager there. `nvidia-smi -q | grep -A2 Fabric` shows "
    "the state.",
    source="NVIDIA, Fabric Manager User Guide",
)
@each_gpu
def fabric_not_ready(gpu: Gpu) -> Case | None:
    """Find GPUs that have not finished their registration with the fabric, or failed to."""
    fabric = gpu.nvlink.fabric if isinstance(gpu.nvlink, NvLinks) else None
    if not isinstance(fabric, Fabric):
        return None
    if fabric.state in ("not started", "in progress"):
        return Case(f"registration with the NVSwitch fabric is {fabric.state}")
    if isinstance(fabric.status, str) and fabric.status != "success":
        return Case(f"registration with the NVSwitch fabric ended with: {fabric.status}")
    return None


@rule(
    "warning",
    why="Gradients between these GPUs go over PCIe or through host memory.",
    fix="`nvidia-smi topo -p2p n` and `nvidia-smi nvlink --status`; on a board with NVSwitches, "
    "Fabric Manager must run in the version of the driver: "
    "`systemctl status nvidia-fabricmanager`.",
    source="NVIDIA, Fabric Manager User Guide",
)
def p2p_refused(snapshot: Snapshot) -> Iterator[Case]:
    """Find pairs with NVLinks, or of vGPUs that may use them, without P2P over NVLink."""
    if isinstance(snapshot.gpu_pairs, Unknown):
        return
    gpus = {gpu.index: gpu for gpu in snapshot.gpus}
    pairs_by_answer: dict[tuple[str, bool], list[str]] = {}
    for pair in snapshot.gpu_pairs:
        first = gpus.get(pair.first)
        second = gpus.get(pair.second)
        answer = pair.p2p_nvlink
        if first is None or second is None or suggests_unified_memory(pair, first, second):
            continue  # `unified_memory_on` reports these pairs
        if isinstance(answer, str) and answer != "ok" and _should_have_p2p(first, second):
            pairs = pairs_by_answer.setdefault((answer, first.form == "vgpu"), [])
            pairs.append(f"{pair.first}-{pair.second}")
    for (answer, are_vgpus), pairs in pairs_by_answer.items():
        evidence = f"peer-to-peer over NVLink is {answer}"
        subject = pair_names(pairs)
        if are_vgpus:
            yield Case(
                f"{evidence}, though their profiles permit it",
                subject,
                fix="Ask the administrator whether the vGPUs come from one device group and are "
                "on GPUs that NVLink joins.",
                source="NVIDIA AI Enterprise, Peer-To-Peer (P2P) CUDA Transfers",
            )
        else:
            yield Case(f"{evidence}, though their links are up", subject)


def _should_have_p2p(first: Gpu, second: Gpu) -> bool:
    if first.form == second.form == "vgpu":
        return all(
            isinstance(gpu.vgpu, VgpuProfile) and gpu.vgpu.p2p is True for gpu in (first, second)
        )
    if {first.form, second.form} - {"whole", "passthrough"}:
        return False
    return first.is_linked(second)
