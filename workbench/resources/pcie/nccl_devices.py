"""Complete the devices of a topology file in the same way as NCCL.

A ``pci`` element only needs a ``busid``. NCCL reads its other attributes from sysfs of the
machine on which it runs (``ncclTopoGetXmlFromSys`` of ``src/graph/xml``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from workbench.resources.pcie.records import PciDevice
from workbench.resources.unknown import Unknown

DeviceReader: TypeAlias = Callable[[str], PciDevice | None]
"""Returns the device at a PCI address of a machine; None if there is none."""

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
    address, above
        Its PCI address; the addresses of the bridges above (nearest first), then its CPU's name.
    attributes
        Its attributes.
    holds
        Names of its child elements.
    numa_node
        NUMA node of its CPU.
    nets
        Names of its network devices.
    """

    address: str
    above: tuple[str, ...]
    attributes: Mapping[str, str]
    holds: frozenset[str]
    numa_node: int | Unknown
    nets: tuple[str, ...] | Unknown


def complete(element: Element, machine: DeviceReader | None) -> PciDevice:
    """Return the device that an element describes.

    Parameters
    ----------
    element
        Element of the file.
    machine
        Reads devices of the machine on which NCCL reads the file; None if only the file is
        available.
    """
    own = None if machine is None else machine(element.address)
    attributes = element.attributes

    def text(name: str, of_machine: str | Unknown) -> str | Unknown:
        if name not in attributes and isinstance(of_machine, str):
            return of_machine
        return attributes.get(name) or Unknown(f"the topology file gives no {name}")

    speed = _SPEED.match(attributes.get("link_speed", ""))
    gtps = float(speed[1]) if speed else Unknown("the topology file gives no speed")
    width = int_or(attributes.get("link_width", ""), "the topology file gives no width")
    pci_class = text("class", _NOT_IN_FILE)
    if own is not None and isinstance(own.pci_class, str):
        pci_class = own.pci_class  # only here NCCL prefers sysfs to the file
    return PciDevice(
        address=element.address,
        parent=element.above[0],
        kind=_kind(element, pci_class, own, alone=machine is None),
        pci_class=pci_class,
        vendor=text("vendor", own.vendor if own else _NOT_IN_FILE),
        device=text("device", own.device if own else _NOT_IN_FILE),
        subsystem_vendor=text("subsystem_vendor", own.subsystem_vendor if own else _NOT_IN_FILE),
        subsystem_device=text("subsystem_device", own.subsystem_device if own else _NOT_IN_FILE),
        link_gtps=own.link_gtps if own and "link_speed" not in attributes else gtps,
        link_width=own.link_width if own and "link_width" not in attributes else width,
        numa_node=element.numa_node,
        rdma_devices=element.nets,
        acs=_NOT_IN_FILE,
        ats=_NOT_IN_FILE,
    )


def lacking_class(elements: Iterable[Element], machine: DeviceReader) -> str:
    """Return why NCCL fails at a bridge that it cannot complete; empty if there is none.

    NCCL removes branches without a device of this machine before it needs their classes.
    """
    every = list(elements)
    used = {
        bridge for one in every if machine(one.address) is not None for bridge in one.above[:-1]
    }
    for one in every:
        if one.address in used and not one.attributes.get("class") and not machine(one.address):
            return (
                f"pci element {one.address} has no class, and this machine has no device there "
                "from which NCCL could read it"
            )
    return ""


def int_or(text: str, absent: str) -> int | Unknown:
    """Return the integer in a text, or `Unknown` with the reason `absent`."""
    return int(text) if _NUMBER.fullmatch(text.strip()) else Unknown(absent)


def _kind(
    element: Element, pci_class: str | Unknown, own: PciDevice | None, *, alone: bool
) -> str | Unknown:
    """Return the kind of a device by its child elements, as NCCL does, else by its class."""
    for name in ("nic", "gpu"):
        if name in element.holds:
            return name
    if own is not None:
        return own.kind
    if isinstance(pci_class, Unknown):
        if "pci" in element.holds:
            return "bridge"
        where = "this machine has no device at that address"
        if alone:
            where = "NCCL reads it from sysfs of the machine for which the file was written"
        return Unknown(f"the topology file gives no class, and {where}")
    vendor = element.attributes.get("vendor") or _NVIDIA
    if pci_class.startswith("0x03"):  # servers also have a display controller on board
        return "gpu" if vendor == _NVIDIA or not pci_class.startswith(_VGA) else "other"
    if pci_class.startswith("0x02"):
        return "nic"
    is_bridge = pci_class.startswith("0x0604") or "pci" in element.holds
    return "bridge" if is_bridge else "other"
