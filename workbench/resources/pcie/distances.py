"""How far GPUs and NICs are apart in a PCIe tree, by NCCL's rules.

The names and the rules are those of NCCL's ``src/graph`` (``topo``, ``paths`` and
``xml``); NODE is ``nvidia-smi topo``'s. One rule is left out: NCCL takes some
Broadcom switches of two levels for one, so that it says PIX where this says PXB.
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

_MANY_NICS = 32  # above it the pairs of NICs would outgrow all the rest (SR-IOV on a host)


def endpoints(tree: PciTree) -> tuple[list[PciDevice], list[PciDevice]]:
    """Give a tree's GPUs and the NICs that matter to them: those with RDMA, if any has it."""
    gpus = [one for one in tree.devices if one.kind == "gpu"]
    nics = [one for one in tree.devices if one.kind == "nic"]
    if tree.source == SYSFS:  # a topology file lists the NICs that matter, and not their RDMA
        nics = [one for one in nics if one.rdma_devices] or nics
    return gpus, nics


def of_unknown_kind(devices: Iterable[PciDevice]) -> list[PciDevice]:
    """Return the devices of which a topology file does not say what they are."""
    return [one for one in devices if isinstance(one.kind, Unknown)]


def all_distances(tree: PciTree, nodes: int = 0) -> Iterator[PairDistance]:
    """Measure a tree's GPUs and NICs, and what may be one, against each other.

    Parameters
    ----------
    tree
        From sysfs or a topology file.
    nodes
        NUMA nodes of the machine; 0 where that is not known.
    """
    gpus, nics = endpoints(tree)
    every = gpus + of_unknown_kind(tree.devices) + nics
    for i, a in enumerate(every):
        for b in every[i + 1 :]:
            if a.kind != "nic" or len(nics) <= _MANY_NICS:
                yield PairDistance(a.address, b.address, measure(tree, a, b, nodes), tree.source)


def measure(tree: PciTree, a: PciDevice, b: PciDevice, nodes: int = 0) -> Distance | Unknown:
    """Give the distance of two devices of one tree (see `Distance`)."""
    above_a, above_b = (switches_above(tree, one.address) for one in (a, b))
    shared = next((one for one in above_a if one in above_b), None)
    if shared is not None:
        # The switch right above both is one; any further switch on the way makes it several.
        return Distance.PIX if shared == above_a[0] == above_b[0] else Distance.PXB
    same_root = tree.above(a.address)[-1] == tree.above(b.address)[-1]
    if tree.source == TOPOLOGY_FILE:
        return Distance.PHB if same_root else Distance.SYS
    return _over_the_cpus(a, b, nodes, same_root=same_root)


def switches_above(tree: PciTree, address: str) -> tuple[str, ...]:
    """Give the PCIe switches above a device, the nearest first, each by one address.

    In sysfs a switch is two bridges, its upstream port above its downstream
    port, and the root port on top is part of the CPU; a topology file has one
    element per switch.
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
        "NODE or SYS: they are under two host bridges, and the kernel was not given the "
        "NUMA node of both"
    )
