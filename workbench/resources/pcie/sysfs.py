"""Read the PCIe tree of the guest's kernel from sysfs."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from workbench.resources.files import children, is_pci_address, pci_folder, read_int, read_text
from workbench.resources.pcie.config import acs, ats, read_config
from workbench.resources.pcie.records import SYSFS, PciDevice, PciRoot, PciTree
from workbench.resources.unknown import Unknown

N = TypeVar("N", int, float)

_NVIDIA = "0x10de"
_SPEED = re.compile(r"([\d.]+) GT/s")


def read_tree(sysfs: Path) -> PciTree | Unknown:
    """Return the tree of GPUs, NICs and the bridges above them."""
    folder = sysfs / "bus/pci/devices"
    if not folder.is_dir():
        return Unknown(f"{folder} does not exist: this machine has no PCI")
    rdma = _rdma_devices(sysfs)
    roots: dict[str, PciRoot] = {}
    devices: dict[str, PciDevice] = {}
    for entry in children(folder):
        place = entry.resolve()
        if _kind(place, rdma) not in ("gpu", "nic"):
            continue
        path = _from_the_top(place)
        for one in path:
            if one.name not in devices:
                devices[one.name] = _device(one, rdma)
        root = path[0].parent.name
        roots.setdefault(root, PciRoot(root, Unknown("sysfs only has it for devices"), {}))
    return PciTree(SYSFS, str(folder), tuple(roots.values()), tuple(devices.values()), (), {})


def device_reader(sysfs: Path) -> Callable[[str], PciDevice | None]:
    """Return a function that reads the device at a PCI address, or None if there is none."""
    rdma = _rdma_devices(sysfs)

    @functools.cache
    def read(address: str) -> PciDevice | None:
        folder = sysfs / "bus/pci/devices" / address
        there = is_pci_address(address) and folder.exists()
        return _device(folder.resolve(), rdma) if there else None

    return read


def numa_nodes(sysfs: Path) -> int:
    """Return the number of NUMA nodes that the guest sees."""
    nodes = children(sysfs / "devices/system/node")
    return sum(one.name.startswith("node") and one.name[4:].isdigit() for one in nodes)


def _rdma_devices(sysfs: Path) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for entry in children(sysfs / "class/infiniband"):
        folder = pci_folder(entry / "device")
        if folder is not None:
            found[folder.name] = (*found.get(folder.name, ()), entry.name)
    return found


def _from_the_top(place: Path) -> list[Path]:
    """Return the folders of the bridges from the host bridge down, then the device's own.

    `place` is a resolved path, so the parents of the device's folder are its bridges.
    """
    found = [place]
    while is_pci_address(found[0].parent.name):
        found.insert(0, found[0].parent)
    return found


def _device(folder: Path, rdma: dict[str, tuple[str, ...]]) -> PciDevice:
    config = read_config(folder)
    node = read_int(folder / "numa_node")
    return PciDevice(
        address=folder.name,
        parent=folder.parent.name,
        kind=_kind(folder, rdma),
        pci_class=read_text(folder / "class"),
        vendor=read_text(folder / "vendor"),
        device=read_text(folder / "device"),
        subsystem_vendor=read_text(folder / "subsystem_vendor"),
        subsystem_device=read_text(folder / "subsystem_device"),
        link_gtps=_lower(_speeds(folder), "speed"),
        link_width=_lower(_widths(folder), "width"),
        numa_node=_no_node() if node == -1 else node,
        rdma_devices=rdma.get(folder.name, ()),
        acs=acs(config),
        ats=ats(config),
    )


def _kind(folder: Path, rdma: dict[str, tuple[str, ...]]) -> str:
    pci_class = read_text(folder / "class")
    if folder.name in rdma:
        return "nic"
    if isinstance(pci_class, Unknown):
        return "other"
    # A VM's display adapter has class 0x03 too; only those of NVIDIA are GPUs here.
    if pci_class.startswith("0x03") and read_text(folder / "vendor") == _NVIDIA:
        return "gpu"
    if pci_class.startswith("0x02"):
        return "nic"
    return "bridge" if pci_class.startswith("0x06") else "other"


def _no_node() -> Unknown:
    return Unknown("the kernel knows no NUMA node for it (-1), as usual in a VM")


def _speeds(folder: Path) -> Iterator[float]:
    for one in (folder, folder.parent):  # NCCL uses the slower of a device and its port
        text = read_text(one / "max_link_speed")
        match = _SPEED.match(text) if isinstance(text, str) else None
        if match:
            yield float(match[1])


def _widths(folder: Path) -> Iterator[int]:
    for one in (folder, folder.parent):
        width = read_int(one / "max_link_width")
        # 255 means that the kernel does not know the width.
        if isinstance(width, int) and 0 < width < 255:
            yield width


def _lower(found: Iterator[N], what: str) -> N | Unknown:
    values = list(found)
    return min(values) if values else Unknown(f"the kernel knows no link {what}, as usual in a VM")
