"""Writing a PCIe tree as a topology file that NCCL reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape

from workbench.resources.pcie.distances import switches_above
from workbench.resources.pcie.records import SYSFS, PciDevice, PciTree
from workbench.resources.unknown import Unknown

# NCCL must know what a device is; the rest it looks up itself where it is left out.
_CLASSES = {"gpu": "0x030200", "nic": "0x020000", "bridge": "0x060400"}


def topology_text(tree: PciTree) -> str:
    """Write a tree the way NCCL's parser takes it.

    That parser takes no XML declaration and no tabs. Switches stand as one
    element each, as NCCL itself makes of sysfs; a host bridge of sysfs becomes
    the CPU of its NUMA node. NVLinks are written. Network devices are not, NCCL
    finds its own; but for those that a file rules out of GPUDirect (``gdr="0"``).
    """
    cpus: dict[str, dict[str, str]] = {}
    below: dict[str, list[PciDevice]] = {}
    for device in _standing(tree):
        parent = next(iter(switches_above(tree, device.address)), None)
        if parent is None:
            parent, attributes = _cpu(tree, device)
            cpus.setdefault(parent, attributes)
        below.setdefault(parent, []).append(device)
    lines = ['<system version="1">']
    for name, attributes in cpus.items():
        inside = [line for one in below[name] for line in _pci(tree, one, below, 4)]
        lines += [f"  <cpu{_attributes(attributes)}>", *inside, "  </cpu>"]
    return "\n".join([*lines, "</system>", ""])


def _standing(tree: PciTree) -> list[PciDevice]:
    """Give the devices that get an element: all but the ports that NCCL folds away."""
    if tree.source != SYSFS:
        return [one for one in tree.devices if "/" not in one.address]
    ends = [one for one in tree.devices if one.kind in ("gpu", "nic")]
    switches = {name for one in ends for name in switches_above(tree, one.address)}
    return [one for one in tree.devices if one.address in switches or one in ends]


def _cpu(tree: PciTree, device: PciDevice) -> tuple[str, dict[str, str]]:
    node = "-1" if isinstance(device.numa_node, Unknown) else str(device.numa_node)
    if tree.source == SYSFS:
        return f"cpu{node}", {"numaid": node}
    name = tree.above(device.address)[-1]
    root = next((one for one in tree.roots if one.name == name), None)
    return name, {"numaid": node, **(root.cpu if root else {})}


def _pci(
    tree: PciTree, device: PciDevice, below: dict[str, list[PciDevice]], indent: int
) -> Iterator[str]:
    attributes: dict[str, object] = {
        "busid": device.address,
        "class": _known(device.pci_class) or _CLASSES.get(str(device.kind)),
        "vendor": device.vendor,
        "device": device.device,
        "subsystem_vendor": device.subsystem_vendor,
        "subsystem_device": device.subsystem_device,
        "link_speed": None
        if isinstance(device.link_gtps, Unknown)
        else f"{device.link_gtps:g} GT/s",
        "link_width": device.link_width,
    }
    start = " " * indent + f"<pci{_attributes(attributes)}"
    inside = [*_gpu(tree, device, indent + 2), *_net(tree, device, indent + 2)]
    for one in below.get(device.address, []):
        inside += _pci(tree, one, below, indent + 2)
    yield from [f"{start}>", *inside, " " * indent + "</pci>"] if inside else [f"{start}/>"]


def _gpu(tree: PciTree, device: PciDevice, indent: int) -> Iterator[str]:
    links = [one for one in tree.nvlinks if one.gpu == device.address]
    told = tree.told.get(device.address, {})
    if device.kind != "gpu" or not (links or told):
        return
    attributes = {name: told.get(name) for name in ("sm", "gdr")}
    yield " " * indent + f"<gpu{_attributes(attributes)}>"
    for one in links:
        shown = {"target": one.peer, "count": one.count, "tclass": one.peer_class}
        yield " " * (indent + 2) + f"<nvlink{_attributes(shown)}/>"
    if "c2c" in told:
        yield " " * (indent + 2) + f"<c2c{_attributes({'count': told['c2c']})}/>"
    yield " " * indent + "</gpu>"


def _net(tree: PciTree, device: PciDevice, indent: int) -> Iterator[str]:
    told = tree.told.get(device.address, {})
    if device.kind == "nic" and told.get("gdr") == "0" and "name" in told:
        attributes = {"name": told["name"], "gdr": "0"}  # NCCL finds a device by its name
        yield " " * indent + "<nic>"
        yield " " * (indent + 2) + f"<net{_attributes(attributes)}/>"
        yield " " * indent + "</nic>"


def _attributes(values: Mapping[str, object]) -> str:
    known = ((name, _known(value)) for name, value in values.items())
    return "".join(f' {name}="{escape(text)}"' for name, text in known if text is not None)


def _known(value: object) -> str | None:
    return None if value is None or isinstance(value, Unknown) else str(value)
