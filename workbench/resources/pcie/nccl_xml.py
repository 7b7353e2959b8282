"""Find what NCCL's own parser rejects in a topology file, and write files that it accepts.

In `xmlGetNode` and `xmlGetToken` of NCCL's ``src/graph/xml``, only blanks and line ends
may be between elements, only blanks within an element, and a name that begins with ``?``
is not an element. NCCL fails to start with such a file (``ncclInternalError``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.etree import ElementTree as ET

from workbench.resources.pcie.distances import switches_above
from workbench.resources.pcie.records import SYSFS, PciDevice, PciTree
from workbench.resources.unknown import Unknown

_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_VALUE = re.compile(r"\"[^\"]*\"|'[^']*'")
_BROKEN_TAG = re.compile(r"<[^>]*[\r\n]")
# NCCL needs the class of each device. It reads other missing attributes from sysfs.
_CLASSES = {"gpu": "0x030200", "nic": "0x020000", "bridge": "0x060400"}


def rejection_reason(data: bytes) -> str:
    """Return why NCCL rejects a file; empty if it accepts the file.

    Examples
    --------
    >>> rejection_reason(b'<?xml version="1.0"?><system version="1"/>')
    'line 1 has an XML declaration (<?xml ...?>)'
    >>> rejection_reason(b'<system version="1"></system>')
    ''
    """
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        return "it begins with a byte order mark"
    text = data.decode("latin-1")
    bare = _VALUE.sub("''", _COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text))
    if "<?" in bare:
        return f"line {_line(bare, '<?')} has an XML declaration (<?xml ...?>)"
    if "\t" in bare:
        return f"line {_line(bare, chr(9))} has a tab, where NCCL only accepts blanks"
    broken = _BROKEN_TAG.search(bare)
    if broken:
        return f"line {_line(bare, broken[0])} begins an element that ends on another line"
    return ""


def _line(text: str, part: str) -> int:
    """Return the number of the line on which a part of the text begins."""
    return text.count("\n", 0, text.index(part)) + 1


def topology_text(tree: PciTree) -> str:
    """Return a tree as XML in the form that NCCL's parser accepts.

    That parser accepts no XML declaration and no tabs, and reads a blank before ``/>`` as
    an attribute. A switch is one element, as in NCCL's own dumps; a host bridge of sysfs
    becomes the CPU of its NUMA node. NVLinks are written. Network devices are not, since
    NCCL finds them itself, except those that a file excludes from GPUDirect (``gdr="0"``).
    """
    system = ET.Element("system", version="1")
    shown = _shown_devices(tree)
    elements = {device.address: _device_element(tree, device) for device in shown}
    for device in shown:
        parent = next(iter(switches_above(tree, device.address)), None)
        if parent is None:
            parent, attributes = _cpu(tree, device)
            if parent not in elements:
                elements[parent] = _add(system, "cpu", attributes)
        if parent in elements:  # an edited snapshot may lack a bridge
            elements[parent].append(elements[device.address])
    ET.indent(system)
    return ET.tostring(system, encoding="unicode").replace(" />", "/>") + "\n"


def _shown_devices(tree: PciTree) -> list[PciDevice]:
    """Return the devices that get an element; the ports of a switch get none."""
    if tree.source != SYSFS:
        return [device for device in tree.devices if "/" not in device.address]
    endpoints = [device for device in tree.devices if device.kind in ("gpu", "nic")]
    switches = {switch for device in endpoints for switch in switches_above(tree, device.address)}
    return [device for device in tree.devices if device.address in switches or device in endpoints]


def _cpu(tree: PciTree, device: PciDevice) -> tuple[str, dict[str, str]]:
    """Return the name and the attributes of the CPU that a device is attached to."""
    node = "-1" if isinstance(device.numa_node, Unknown) else str(device.numa_node)
    if tree.source == SYSFS:
        return f"cpu{node}", {"numaid": node}
    name = tree.above(device.address)[-1]
    root = next((root for root in tree.roots if root.name == name), None)
    return name, {"numaid": node, **(root.cpu if root else {})}


def _device_element(tree: PciTree, device: PciDevice) -> ET.Element:
    gtps = device.link_gtps
    pci_class = device.pci_class
    is_class_known = not isinstance(pci_class, Unknown)
    attributes = {
        "busid": device.address,
        "class": pci_class if is_class_known else _CLASSES.get(str(device.kind)),
        "vendor": device.vendor,
        "device": device.device,
        "subsystem_vendor": device.subsystem_vendor,
        "subsystem_device": device.subsystem_device,
        "link_speed": None if isinstance(gtps, Unknown) else f"{gtps:g} GT/s",
        "link_width": device.link_width,
    }
    element = ET.Element("pci", _known(attributes))
    in_file = tree.file_attributes(device.address)
    if device.kind == "gpu":
        _add_gpu(element, tree, device)
    elif device.kind == "nic" and in_file.get("gdr") == "0" and "name" in in_file:
        nic = _add(element, "nic", {})  # NCCL finds a network device by its name
        _add(nic, "net", {"name": in_file["name"], "gdr": "0"})
    return element


def _add_gpu(parent: ET.Element, tree: PciTree, device: PciDevice) -> None:
    links = [link for link in tree.nvlinks if link.gpu == device.address]
    attributes = tree.file_attributes(device.address)
    if not (links or attributes):
        return
    gpu = _add(parent, "gpu", {name: attributes.get(name) for name in ("sm", "gdr")})
    for link in links:
        _add(gpu, "nvlink", {"target": link.peer, "count": link.count, "tclass": link.peer_class})
    if "c2c" in attributes:
        _add(gpu, "c2c", {"count": attributes["c2c"]})


def _add(parent: ET.Element, name: str, attributes: Mapping[str, object]) -> ET.Element:
    return ET.SubElement(parent, name, _known(attributes))


def _known(attributes: Mapping[str, object]) -> dict[str, str]:
    return {
        name: str(value)
        for name, value in attributes.items()
        if value is not None and not isinstance(value, Unknown)
    }
