"""Complete the devices of a topology file in the same way as NCCL.

A ``pci`` element only needs a ``busid``. NCCL reads the other attributes from sysfs of its
VM (``ncclTopoGetXmlFromSys`` of ``src/graph/xml``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from workbench.resources.pcie.records import PciDevice
from workbench.resources.unknown import Unknown

DeviceReader: TypeAlias = Callable[[str], PciDevice | None]
"""Returns the device at a PCI address of a VM, or None if no device has that address."""

_NVIDIA = "0x10de"
_VGA = "0x0300"
_NUMBER = re.compile(r"-?[0-9]{1,9}")
_SPEED = re.compile(r"\s*(\d{1,6}(?:\.\d{1,6})?)\s*GT/s", re.ASCII)
_NOT_IN_FILE = Unknown("not in a topology file")


@dataclass(frozen=True)
class Element:
    """A ``pci`` element of a topology file.

    Attributes
    ----------
    address, ancestors
        Its PCI address; the addresses of the bridges above (nearest first), then its CPU's name.
    attributes
        Its attributes.
    children
        Names of its child elements.
    numa_node
        NUMA node of its CPU.
    network_devices
        Names of its network devices.
    """

    address: str
    ancestors: tuple[str, ...]
    attributes: Mapping[str, str]
    children: frozenset[str]
    numa_node: int | Unknown
    network_devices: tuple[str, ...] | Unknown


def complete(element: Element, read_device: DeviceReader | None) -> PciDevice:
    """Return the device that an element describes.

    `read_device` is None if only the file is available.
    """
    in_sysfs = None if read_device is None else read_device(element.address)
    attributes = element.attributes

    def text(name: str) -> str | Unknown:
        sysfs_value = getattr(in_sysfs, name, None) if name not in attributes else None
        if isinstance(sysfs_value, str):
            return sysfs_value
        return attributes.get(name) or Unknown(f"the topology file gives no {name}")

    speed = _SPEED.match(attributes.get("link_speed", ""))
    gtps = float(speed[1]) if speed else Unknown("the topology file gives no speed")
    width = int_or(attributes.get("link_width", ""), "the topology file gives no width")
    pci_class = attributes.get("class") or Unknown("the topology file gives no class")
    if in_sysfs is not None and isinstance(in_sysfs.pci_class, str):
        pci_class = in_sysfs.pci_class  # the only attribute for which NCCL prefers sysfs
    return PciDevice(
        address=element.address,
        parent=element.ancestors[0],
        kind=_kind(element, pci_class, in_sysfs, only_file=read_device is None),
        pci_class=pci_class,
        vendor=text("vendor"),
        device=text("device"),
        subsystem_vendor=text("subsystem_vendor"),
        subsystem_device=text("subsystem_device"),
        link_gtps=in_sysfs.link_gtps if in_sysfs and "link_speed" not in attributes else gtps,
        link_width=in_sysfs.link_width if in_sysfs and "link_width" not in attributes else width,
        numa_node=element.numa_node,
        rdma_devices=element.network_devices,
        acs=_NOT_IN_FILE,
        ats=_NOT_IN_FILE,
    )


def missing_class(elements: Iterable[Element], read_device: DeviceReader) -> str:
    """Return why NCCL fails at a bridge that it cannot complete; empty if it does not fail.

    NCCL removes branches without a device of this VM before it needs their classes.
    """
    listed = list(elements)
    used = {
        bridge
        for element in listed
        if read_device(element.address) is not None
        for bridge in element.ancestors[:-1]
    }
    for element in listed:
        has_class = element.attributes.get("class")
        if element.address in used and not has_class and not read_device(element.address):
            return (
                f"pci element {element.address} has no class, and this machine has no device there "
                "from which NCCL could read it"
            )
    return ""


def int_or(text: str, reason: str) -> int | Unknown:
    """Return the integer in a text, or `Unknown` with the given reason.

    Examples
    --------
    >>> int_or("16", "the topology file gives no width")
    16
    >>> int_or("", "the topology file gives no width")
    Unknown(reason='the topology file gives no width')
    """
    return int(text) if _NUMBER.fullmatch(text.strip()) else Unknown(reason)


def _kind(
    element: Element, pci_class: str | Unknown, in_sysfs: PciDevice | None, *, only_file: bool
) -> str | Unknown:
    """Return the kind of a device by its child elements, as NCCL does, or else by its class."""
    for name in ("nic", "gpu"):
        if name in element.children:
            return name
    if in_sysfs is not None:
        return in_sysfs.kind
    if isinstance(pci_class, Unknown):
        if "pci" in element.children:
            return "bridge"
        cause = "this machine has no device at that address"
        if only_file:
            cause = "NCCL reads it from sysfs of the machine for which the file was written"
        return Unknown(f"the topology file gives no class, and {cause}")
    vendor = element.attributes.get("vendor") or _NVIDIA
    if pci_class.startswith("0x03"):  # servers also have a display controller on board
        return "gpu" if vendor == _NVIDIA or not pci_class.startswith(_VGA) else "other"
    if pci_class.startswith("0x02"):
        return "nic"
    is_bridge = pci_class.startswith("0x0604") or "pci" in element.children
    return "bridge" if is_bridge else "other"
