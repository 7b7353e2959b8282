"""Distance of two devices of a snapshot, including NVLink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.resources.distance import Distance
from workbench.resources.gpus.records import Gpu, GpuPair, NvLink, NvLinks
from workbench.resources.naming import Device, DeviceLike, find_device
from workbench.resources.pcie.distances import measure
from workbench.resources.pcie.records import Pcie
from workbench.resources.unknown import Unknown

if TYPE_CHECKING:
    from workbench.resources.snapshot import Snapshot

_SWITCH = "0x068000"  # the PCI class of an NVSwitch


def device_distance(snapshot: Snapshot, a: DeviceLike, b: DeviceLike) -> Distance | Unknown:
    """Return the distance of two devices; see `Snapshot.distance`."""
    one, other = find_device(snapshot, a), find_device(snapshot, b)
    if one == other:
        return Distance.LOC
    for device in (one, other):
        if isinstance(device.address, Unknown):
            return device.address
    if one.address == other.address:
        return Distance.LOC
    if _over_nvlink(snapshot, one, other):
        return Distance.NVLINK
    return _over_pcie(snapshot, one, other)


def _over_nvlink(snapshot: Snapshot, one: Device, other: Device) -> bool:
    if one.gpu is None or other.gpu is None or "mig" in (one.gpu.form, other.gpu.form):
        return False
    pair = _pair(snapshot, one.gpu, other.gpu)
    if pair is not None and isinstance(pair.p2p_nvlink, str):
        return pair.p2p_nvlink == "ok"  # links may be up, and still not be usable
    return _linked(one.gpu, other.gpu) or _linked_in_file(snapshot, one, other)


def _pair(snapshot: Snapshot, one: Gpu, other: Gpu) -> GpuPair | None:
    pairs = () if isinstance(snapshot.gpu_pairs, Unknown) else snapshot.gpu_pairs
    wanted = {one.index, other.index}
    return next((pair for pair in pairs if {pair.first, pair.second} == wanted), None)


def _linked(one: Gpu, other: Gpu) -> bool:
    """Return whether active links connect two GPUs directly or through switches."""
    ends = [{link.peer_pci_address for link in _up(gpu)} for gpu in (one, other)]
    to_switch = [any(link.peer == "switch" for link in _up(gpu)) for gpu in (one, other)]
    return all(to_switch) or other.pci_address in ends[0] or one.pci_address in ends[1]


def _up(gpu: Gpu) -> tuple[NvLink, ...]:
    links = gpu.nvlink.links if isinstance(gpu.nvlink, NvLinks) else ()
    return tuple(x for x in links if x.state == "up") if isinstance(links, tuple) else ()


def _linked_in_file(snapshot: Snapshot, one: Device, other: Device) -> bool:
    """Return whether a topology file lists NVLinks between two GPUs, or from both to switches."""
    trees = () if isinstance(snapshot.pcie, Unknown) else snapshot.pcie.trees
    links = [link for tree in trees for link in tree.nvlinks if link.count != 0]
    if any({link.gpu, link.peer} == {one.address, other.address} for link in links):
        return True
    to_switch = {link.gpu for link in links if link.peer_class == _SWITCH}
    return {one.address, other.address} <= to_switch


def _over_pcie(snapshot: Snapshot, one: Device, other: Device) -> Distance | Unknown:
    pcie = snapshot.pcie
    if isinstance(pcie, Unknown):
        pair = _pair(snapshot, one.gpu, other.gpu) if one.gpu and other.gpu else None
        return pcie if pair is None or isinstance(pair.topology, Unknown) else pair.topology
    found = pcie.distance(str(one.address), str(other.address))
    return _measured(snapshot, pcie, one, other) if found is None else found.distance


def _measured(snapshot: Snapshot, pcie: Pcie, one: Device, other: Device) -> Distance | Unknown:
    """Measure a distance that the snapshot leaves out, such as to a NIC without RDMA."""
    nodes = snapshot.host.numa_nodes
    for tree in pcie.trees:
        a, b = tree.find(str(one.address)), tree.find(str(other.address))
        if a is not None and b is not None:
            return measure(tree, a, b, nodes if isinstance(nodes, int) else 0)
    return Unknown(f"no source has both {one.address} and {other.address} in its PCIe tree")
