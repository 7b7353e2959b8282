"""NUMA nodes of PCI devices, and the cores of each node, from sysfs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from workbench.resources.files import children, read_int, read_text
from workbench.resources.unknown import Unknown


def numa_node(folder: Path) -> int | Unknown:
    """Return the NUMA node of a PCI device, by its folder in sysfs."""
    node = read_int(folder / "numa_node")
    if node == -1:
        return Unknown("the kernel knows no NUMA node for it (-1), as usual in a VM")
    return node


def numa_of(pci_addresses: Iterable[str | Unknown], sysfs: Path = Path("/sys")) -> dict[str, int]:
    """Return the NUMA node of each PCI device, except devices with an unknown node."""
    addresses = (address for address in pci_addresses if isinstance(address, str))
    nodes = {address: numa_node(sysfs / "bus/pci/devices" / address) for address in addresses}
    return {address: node for address, node in nodes.items() if isinstance(node, int)}


def node_count(sysfs: Path) -> int:
    """Return the number of NUMA nodes that the guest sees; 0 if the kernel lists none."""
    return len(_node_folders(sysfs))


def cores_of_nodes(sysfs: Path = Path("/sys")) -> dict[str, list[int]]:
    """Return the cores on which this process may run, by NUMA node."""
    allowed = os.sched_getaffinity(0)
    cores = {folder.name[4:]: read_text(folder / "cpulist") for folder in _node_folders(sysfs)}
    return {
        node: sorted(_parse(text) & allowed)
        for node, text in cores.items()
        if isinstance(text, str)
    }


def _node_folders(sysfs: Path) -> list[Path]:
    folders = children(sysfs / "devices/system/node")
    return [
        folder for folder in folders if folder.name.startswith("node") and folder.name[4:].isdigit()
    ]


def _parse(text: str) -> set[int]:
    """Parse the kernel's list of cores.

    Examples
    --------
    >>> sorted(_parse("0-3,8"))
    [0, 1, 2, 3, 8]
    """
    cores: set[int] = set()
    for item in text.split(","):
        if item.strip():
            first, _, last = item.partition("-")
            cores |= set(range(int(first), int(last or first) + 1))
    return cores
