"""NUMA nodes of PCI devices, and the cores of each node, from sysfs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from workbench.resources.files import children, read_int, read_text
from workbench.resources.unknown import Unknown


def numa_of(pci_addresses: Iterable[str | Unknown], sysfs: Path = Path("/sys")) -> dict[str, int]:
    """Return the NUMA node of each PCI device, if the kernel knows it."""
    found = {}
    for address in pci_addresses:
        if isinstance(address, str):
            node = read_int(sysfs / "bus/pci/devices" / address / "numa_node")
            if isinstance(node, int) and node >= 0:
                found[address] = node
    return found


def cores_of_nodes(sysfs: Path = Path("/sys")) -> dict[str, list[int]]:
    """Return, by NUMA node, the cores on which this process may run."""
    allowed = os.sched_getaffinity(0)
    found = {}
    for folder in children(sysfs / "devices/system/node"):
        text = read_text(folder / "cpulist")
        if folder.name.startswith("node") and isinstance(text, str):
            found[folder.name.removeprefix("node")] = sorted(_parse(text) & allowed)
    return found


def _parse(text: str) -> set[int]:
    """Parse the kernel's list of cores, such as ``0-3,8``."""
    cores: set[int] = set()
    for part in text.split(","):
        if part.strip():
            first, _, last = part.partition("-")
            cores |= set(range(int(first), int(last or first) + 1))
    return cores
