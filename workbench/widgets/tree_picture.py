"""A picture of a VM's PCIe tree: NUMA nodes above switches above GPUs and NICs."""

from __future__ import annotations

from dataclasses import dataclass, field

from workbench.resources import Nic, Snapshot, Unknown
from workbench.resources.pcie.distances import endpoints, switches_above
from workbench.resources.pcie.records import PciDevice, PciTree
from workbench.widgets.svg import label, line, number, tag

_MAX_LEAVES = 40
"""Limit of the devices in a picture; for more, the distance matrix is clearer."""
_MAX_GPUS = 16
# Lengths are in pixels.
_BOX_WIDTH = 76
_BOX_HEIGHT = 30
_GAP = 8
_LEVEL = 54
"""Distance between the tops of two levels of boxes."""
_EDGE = 2
"""Distance of the boxes from the picture's border."""
_STYLES = {
    "gpu": ("rgba(118, 185, 0, 0.22)", "#6da800"),
    "nic": ("rgba(33, 150, 243, 0.20)", "#2196f3"),
    "bridge": ("rgba(127, 127, 127, 0.12)", "#8a8a8a"),
    "cpu": ("rgba(127, 127, 127, 0.20)", "#8a8a8a"),
}
"""Fill and edge of a box, legible on white and black; its text has the page's colour."""
_NVLINK = "#e07b00"


@dataclass
class _Node:
    """A box and the boxes below it."""

    kind: str
    text: str
    below: dict[str, _Node] = field(default_factory=dict)
    left: float = 0.0
    right: float = 0.0

    @property
    def depth(self) -> int:
        """Number of levels below this box."""
        return 1 + max((node.depth for node in self.below.values()), default=-1)

    @property
    def middle(self) -> float:
        return (self.left + self.right) / 2


def tree_picture(snapshot: Snapshot) -> str:
    """Draw the tree that NCCL uses, as HTML; return an empty string without a useful picture.

    A picture needs a tree with a GPU and another device, and at most `_MAX_LEAVES` devices.
    """
    trees = () if isinstance(snapshot.pcie, Unknown) else snapshot.pcie.trees
    for tree in trees:
        gpus, nics = endpoints(tree)
        if gpus and 2 <= len(gpus) + len(nics) <= _MAX_LEAVES:
            return _draw(snapshot, tree, [*gpus, *nics])
    return ""


def _draw(snapshot: Snapshot, tree: PciTree, leaves: list[PciDevice]) -> str:
    roots: dict[str, _Node] = {}
    nodes_by_address: dict[str, _Node] = {}
    for device in leaves:
        key, text = _root(tree, device)
        node = roots.setdefault(key, _Node("cpu", text))
        for switch in reversed(switches_above(tree, device.address)):
            node = node.below.setdefault(switch, _Node("bridge", "PCIe switch"))
        nodes_by_address[device.address] = _Node(str(device.kind), _name(snapshot, device))
        node.below[device.address] = nodes_by_address[device.address]
    width: float = _EDGE
    for root in roots.values():
        width = _lay_out(root, width) + _GAP
    levels = max(root.depth for root in roots.values())
    bottom = _EDGE + levels * _LEVEL
    parts = [_box(root, _EDGE, bottom) for root in roots.values()]
    bars = _nvlinks(snapshot, nodes_by_address, bottom + _BOX_HEIGHT)
    height = bottom + _BOX_HEIGHT + _EDGE + (22 * len(bars) + 4 if bars else 0)
    picture = {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": f"0 0 {number(width)} {number(height)}",
        "width": number(width),
        "role": "img",
        "aria_label": _description(roots),
        "height": number(height),
        "style": "display:block;color:inherit;font:11px sans-serif",
    }
    svg = tag("svg", picture, *parts, *bars)
    # Not shrunk to the page's width: the text of a large board would be illegible.
    return f'<div style="overflow-x:auto;margin:8px 0" tabindex="0">{svg}</div>'


def _root(tree: PciTree, device: PciDevice) -> tuple[str, str]:
    if isinstance(device.numa_node, int):
        return f"numa{device.numa_node}", f"NUMA node {device.numa_node}"
    name = tree.above(device.address)[-1]
    return name, "NUMA node unknown"


def _name(snapshot: Snapshot, device: PciDevice) -> str:
    for gpu in snapshot.gpus:
        if gpu.pci_address == device.address:
            return f"GPU {gpu.index}"
    for nic in snapshot.nics:
        if nic.pci_address == device.address:
            return _short_name(nic)
    return device.address


def _short_name(nic: Nic) -> str:
    name = nic.name if isinstance(nic.rdma_device, Unknown) else nic.rdma_device
    return name if len(name) <= 12 else f"{name[:11]}\u2026"


def _lay_out(node: _Node, left: float) -> float:
    """Place a box and all boxes below it, starting at `left`; return the right end."""
    node.left = left
    if not node.below:
        node.right = left + _BOX_WIDTH
        return node.right
    for child in sorted(node.below.values(), key=lambda child: child.kind != "gpu"):
        left = _lay_out(child, left) + _GAP
    node.right = left - _GAP
    return node.right


def _box(node: _Node, top: float, bottom: float) -> str:
    fill, edge = _STYLES.get(node.kind, _STYLES["bridge"])
    height = _BOX_HEIGHT if not node.below else _BOX_HEIGHT - 6
    box = {"x": number(node.left), "y": number(top), "width": number(node.right - node.left),
           "height": number(height), "rx": 4, "fill": fill, "stroke": edge}  # fmt: skip
    parts = [
        tag("rect", box),
        label(node.middle, top + height / 2 + 4, node.text, text_anchor="middle"),
    ]
    for child in node.below.values():
        child_top = top + _LEVEL if child.below else bottom
        parts += [
            line(child.middle, top + height, child.middle, child_top, stroke_opacity=0.6),
            _box(child, child_top, bottom),
        ]
    return tag("g", {}, *parts)


def _nvlinks(snapshot: Snapshot, nodes_by_address: dict[str, _Node], top: float) -> list[str]:
    """Draw a bar below each group of GPUs connected by NVLink."""
    gpus = {gpu.index: nodes_by_address.get(str(gpu.pci_address)) for gpu in snapshot.gpus}
    drawn_gpus = [index for index, node in gpus.items() if node is not None][:_MAX_GPUS]
    groups: list[list[int]] = []
    for index in drawn_gpus:
        connected_groups = [
            group for group in groups if snapshot.distance(group[0], index) == "NVLINK"
        ]
        connected_groups[0].append(index) if connected_groups else groups.append([index])
    bars: list[str] = []
    for group in (group for group in groups if len(group) > 1):
        y = top + 14 + 22 * len(bars)
        centers = [node.middle for index in group if (node := gpus[index]) is not None]
        stroke = {"stroke": _NVLINK, "stroke_opacity": 1, "stroke_width": 2}
        bars.append(
            line(min(centers), y, max(centers), y, **stroke)
            + "".join(line(x, top, x, y, **stroke) for x in centers)
            + label(min(centers) + 6, y - 3, "NVLink")
        )
    return bars


def _description(roots: dict[str, _Node]) -> str:
    return "; ".join(f"{root.text}: {_contents(root)}" for root in roots.values())


def _contents(node: _Node) -> str:
    return ", ".join(
        f"{child.text} with ({_contents(child)})" if child.below else child.text
        for child in node.below.values()
    )
