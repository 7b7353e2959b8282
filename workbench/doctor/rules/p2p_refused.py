"""GPUs that should reach one another over NVLink, and may not."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.doctor.gpu_links import links_up
from workbench.doctor.several import first_of
from workbench.doctor.unified_memory import shows_unified_memory
from workbench.resources import Gpu, Snapshot, Unknown
from workbench.resources.gpus.vgpu import VgpuProfile

_VGPU = (
    "Ask the administrator whether the vGPUs are from one device group and on GPUs that NVLink "
    "joins."
)
_GPU = (
    "`nvidia-smi topo -p2p n` and `nvidia-smi nvlink --status`; where there are NVSwitches, "
    "Fabric Manager must run in the version of the driver: `systemctl status nvidia-fabricmanager`."
)


def p2p_refused(snapshot: Snapshot) -> Iterator[Finding]:
    """Find pairs with NVLinks, or of vGPUs that may use them, that have no P2P over NVLink."""
    if isinstance(snapshot.gpu_pairs, Unknown):
        return
    gpus = {gpu.index: gpu for gpu in snapshot.gpus}
    found: dict[tuple[str, bool], list[str]] = {}
    for pair in snapshot.gpu_pairs:
        one, other = gpus.get(pair.first), gpus.get(pair.second)
        said = pair.p2p_nvlink
        if one is None or other is None or shows_unified_memory(pair, one, other):
            continue  # that rule speaks
        if isinstance(said, str) and said != "ok" and _should(one, other):
            of = found.setdefault((said, one.form == "vgpu"), [])
            of.append(f"{pair.first}-{pair.second}")
    for (said, vgpu), pairs in found.items():
        yield _finding(said, pairs, vgpu=vgpu)


def _finding(said: str, pairs: list[str], *, vgpu: bool) -> Finding:
    return Finding(
        rule="p2p_refused",
        severity="warning",
        subject=f"{'GPUs' if len(pairs) == 1 else 'pairs of GPUs'} {first_of(pairs, 8)}",
        evidence=f"peer-to-peer over NVLink is {said}, though "
        + ("their profiles permit it" if vgpu else "their links are up"),
        why="Gradients between these GPUs take the way over PCIe or through host memory.",
        cure=_VGPU if vgpu else _GPU,
        source="NVIDIA AI Enterprise, Peer-To-Peer (P2P) CUDA Transfers"
        if vgpu
        else "NVIDIA, Fabric Manager User Guide",
    )


def _should(one: Gpu, other: Gpu) -> bool:
    if one.form == other.form == "vgpu":
        return all(isinstance(x.vgpu, VgpuProfile) and x.vgpu.p2p is True for x in (one, other))
    if {one.form, other.form} - {"whole", "passthrough"}:
        return False
    return (_to_switch(one) and _to_switch(other)) or _joined(one, other) or _joined(other, one)


def _to_switch(gpu: Gpu) -> bool:
    return any(link.peer == "switch" for link in links_up(gpu))


def _joined(one: Gpu, other: Gpu) -> bool:
    ends = {link.peer_pci_address for link in links_up(one)}
    return isinstance(other.pci_address, str) and other.pci_address in ends
