"""Distances of GPUs and NICs in a PCIe tree, by NCCL's rules.

The names and rules are those of NCCL's ``src/graph`` (``topo``, ``paths`` and ``xml``);
NODE is from ``nvidia-smi topo``. One rule is left out: NCCL treats some Broadcom switches
with two levels as one switch, so NCCL's PIX is PXB here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from workbench.resources.distance import Distance
from workbench.resources.pcie.records import (
    SYSFS,
    TOPOLOGY_FILE,
    PairDistance,
    PciDevice,
    PciTree,
)
from workbench.resources.unknown import Unknown

_MANY_NICS = 32  # with more, most pairs would be pairs of NICs (SR-IOV on a host)


def endpoints(tree: PciTree) -> tuple[list[PciDevice], list[PciDevice]]:
    """Return a tree's GPUs, and its NICs with RDMA (all NICs if none has RDMA)."""
    gpus = [one for one in tree.devices if one.kind == "gpu"]
    nics = [one for one in tree.devices if one.kind == "nic"]
    if tree.source == SYSFS:  # a topology file only lists relevant NICs
        nics = [one for one in nics if one.rdma_devices] or nics
    return gpus, nics


def of_unknown_kind(devices: Iterable[PciDevice]) -> list[PciDevice]:
    """Return the devices whose kind is not in the topology file."""
    return [one for one in devices if isinstance(one.kind, Unknown)]


def all_distances(tree: PciTree, nodes: int = 0) -> Iterator[PairDistance]:
    """Yield the distances between GPUs, NICs and devices of unknown kind in a tree.

    Parameters
    ----------
    tree
        From sysfs or a topology file.
    nodes
        Number of NUMA nodes of the machine; 0 if unknown.
    """
    gpus, nics = endpoints(tree)
    every = gpus + of_unknown_kind(tree.devices) + nics
    for i, a in enumerate(every):
        for b in every[i + 1 :]:
            if a.kind != "nic" or len(nics) <= _MANY_NICS:
                yield PairDistance(a.address, b.address, measure(tree, a, b, nodes), tree.source)


def measure(tree: PciTree, a: PciDevice, b: PciDevice, nodes: int = 0) -> Distance | Unknown:
    """Return the distance of two devices of one tree (see `Distance`)."""
    above_a, above_b = (switches_above(tree, one.address) for one in (a, b))
    shared = next((one for one in above_a if one in above_b), None)
    if shared is not None:
        # PIX only if the shared switch is the nearest switch of both devices.
        return Distance.PIX if shared == above_a[0] == above_b[0] else Distance.PXB
    same_root = tree.above(a.address)[-1] == tree.above(b.address)[-1]
    if tree.source == TOPOLOGY_FILE:
        return Distance.PHB if same_root else Distance.SYS
    return _over_the_cpus(a, b, nodes, same_root=same_root)


def switches_above(tree: PciTree, address: str) -> tuple[str, ...]:
    """Return the PCIe switches above a device, the nearest first, with one address each.

    In sysfs a switch is two bridges (its upstream port above its downstream port), and the
    root port at the top belongs to the CPU. A topology file has one element per switch.
    """
    bridges = tree.above(address)[:-1]
    return bridges[1::2] if tree.source == SYSFS else bridges


def _over_the_cpus(
    a: PciDevice, b: PciDevice, nodes: int, *, same_root: bool
) -> Distance | Unknown:
    if isinstance(a.numa_node, int) and isinstance(b.numa_node, int):
        if a.numa_node != b.numa_node:
            return Distance.SYS
        return Distance.PHB if same_root else Distance.NODE
    if same_root:
        return Distance.PHB
    if nodes == 1:
        return Distance.NODE
    return Unknown(
        "NODE or SYS: they are below different host bridges, and the kernel does not know the "
        "NUMA node of both"
    )
