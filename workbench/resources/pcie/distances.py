"""Distances of GPUs and NICs in a PCIe tree, and GPUDirect RDMA between them, by NCCL's rules.

The names and rules come from NCCL's ``src/graph`` (``topo``, ``paths`` and ``xml``);
NODE comes from ``nvidia-smi topo``. One rule is left out: NCCL treats some Broadcom switches
with two levels as one switch, so NCCL's PIX is PXB here.

If a topology file shows a C2C link between GPU and CPU (Grace), NCCL's distance to a NIC at
that CPU is P2C, not PHB. P2C is near enough for GPUDirect RDMA. sysfs does not show C2C.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path

from workbench.resources.distance import Distance
from workbench.resources.files import read_text
from workbench.resources.nccl_settings import NcclSettings
from workbench.resources.pcie.records import (
    SYSFS,
    TOPOLOGY_FILE,
    GpuDirect,
    PairDistance,
    PciDevice,
    PciTree,
    nccl_level,
)
from workbench.resources.unknown import Unknown

_MAX_NICS_PAIRED = 32  # with more NICs (SR-IOV on a host), most pairs would be pairs of NICs
_NCCL_LEVELS = ("LOC", "PIX", "PXB", "P2C", "PHB", "SYS")
# NCCL's other names for a level, each with the equivalent name above.
_OTHER_NAMES = {"NVL": "LOC", "NVB": "LOC", "C2C": "LOC", "PXN": "P2C"}
# Level by the number in NCCL_NET_GDR_LEVEL, from 0; 5 and higher numbers mean SYS.
_LEVEL_NUMBERS = ("LOC", "PIX", "PXB", "PHB", "SYS", "SYS")
_DEFAULT_LEVEL = "PXB"
_DEFAULT_LEVEL_C2C = "P2C"  # from NCCL 2.27 on, unless NCCL_NET_GDR_C2C=0; earlier it is PXB
_LEVEL_SETTING = "NCCL_NET_GDR_LEVEL"


def endpoints(tree: PciTree) -> tuple[list[PciDevice], list[PciDevice]]:
    """Return a tree's GPUs, and its NICs with RDMA (all NICs if none has RDMA)."""
    gpus = [device for device in tree.devices if device.kind == "gpu"]
    nics = [device for device in tree.devices if device.kind == "nic"]
    if tree.source == SYSFS:  # a topology file only lists relevant NICs
        nics = [nic for nic in nics if nic.rdma_devices] or nics
    return gpus, nics


def of_unknown_kind(devices: Iterable[PciDevice]) -> list[PciDevice]:
    """Return the devices of a topology file that does not show their kind."""
    return [device for device in devices if isinstance(device.kind, Unknown)]


def all_distances(tree: PciTree, nodes: int = 0) -> Iterator[PairDistance]:
    """Yield the distances between GPUs, NICs and devices of unknown kind in a tree.

    `nodes` is the number of NUMA nodes of the VM; 0 if unknown.
    """
    gpus, nics = endpoints(tree)
    devices = gpus + of_unknown_kind(tree.devices) + nics
    for i, a in enumerate(devices):
        for b in devices[i + 1 :]:
            if a.kind != "nic" or len(nics) <= _MAX_NICS_PAIRED:
                yield PairDistance(a.address, b.address, measure(tree, a, b, nodes), tree.source)


def measure(tree: PciTree, a: PciDevice, b: PciDevice, nodes: int = 0) -> Distance | Unknown:
    """Return the distance of two devices of one tree (see `Distance`)."""
    above_a, above_b = (switches_above(tree, device.address) for device in (a, b))
    shared = next((switch for switch in above_a if switch in above_b), None)
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


def gpudirect_pairs(
    trees: Sequence[PciTree], settings: NcclSettings, nodes: int
) -> Iterator[GpuDirect]:
    """Yield whether NCCL uses GPUDirect RDMA, for every GPU with every relevant NIC.

    The first tree is the tree that NCCL prefers. ``NCCL_NET_GDR_LEVEL`` in the settings changes
    the limit.
    """
    c2c = any("c2c" in attributes for tree in trees for attributes in tree.told.values())
    level, set_by = _level(settings, c2c=c2c and settings.get("NCCL_NET_GDR_C2C") != "0")
    limit = f"{set_by}={level}" if set_by else f"{level}, NCCL's limit"
    for gpu, nic in _pairs(trees):
        # NCCL uses the first tree that contains at least one of the two.
        tree = next(tree for tree in trees if tree.find(gpu.address) or tree.find(nic.address))
        a = tree.find(gpu.address)
        b = tree.find(nic.address)
        possible, reason = _is_possible(tree, a, b, nodes, level, limit)
        if nic.rdma_devices == ():
            possible = False
            reason = "the NIC has no RDMA device in this VM"
        yield GpuDirect(gpu.address, nic.address, possible, reason, tree.source)


def peer_memory(sysfs: Path) -> str | Unknown:
    """Return the kernel module that gives NICs access to GPU memory, with its version."""
    for path, name in (
        ("module/nvidia_peermem/version", "nvidia_peermem"),
        ("kernel/mm/memory_peers/nv_mem/version", "nv_peer_mem"),
    ):
        version = read_text(sysfs / path)
        if isinstance(version, str):
            return f"{name} {version}"
    return Unknown(
        "neither nvidia_peermem nor nv_peer_mem is loaded. NVIDIA's open driver needs neither, as "
        "it uses dma-buf, which sysfs does not show"
    )


def _is_possible(
    tree: PciTree, a: PciDevice | None, b: PciDevice | None, nodes: int, level: str, limit: str
) -> tuple[bool | Unknown, str]:
    """Return whether NCCL uses GPUDirect RDMA between two devices, and the reason."""
    if a is None or b is None:
        reason = "the topology file has only one of the two: NCCL adds the other from sysfs"
        return Unknown(reason), reason
    excluded = [
        device.address
        for device in (a, b)
        if tree.file_attributes(device.address).get("gdr") == "0"
    ]
    if excluded:
        return False, f"the topology file excludes {' and '.join(excluded)} (gdr=0)"
    distance = measure(tree, a, b, nodes)
    nccl_name = nccl_level(distance)
    if isinstance(distance, Unknown) and type(a.numa_node) is not type(b.numa_node):
        nccl_name = "SYS"  # NCCL treats -1 as another node
    if nccl_name == "PHB" and "c2c" in tree.file_attributes(a.address):
        nccl_name = "P2C"
    shown = nccl_name
    if isinstance(distance, str) and distance != nccl_name:  # the matrix shows another name
        shown = f"{distance}, which is {nccl_name} for NCCL,"
    if _NCCL_LEVELS.index(nccl_name) <= _NCCL_LEVELS.index(level):
        return True, f"{shown} is within {limit}{_redirect_clause(tree, a, b)}"
    reason = f"{shown} is beyond {limit}"
    if tree.source == SYSFS and not switches_above(tree, a.address):
        reason += (
            "; a guest may not see the host's switches: if GPU and NIC share one, provide it to "
            "NCCL in a topology file (NCCL_TOPO_FILE)"
        )
    return False, reason


def _pairs(trees: Sequence[PciTree]) -> Iterator[tuple[PciDevice, PciDevice]]:
    """Return each GPU with each NIC, from the tree of sysfs or else from the first tree."""
    tree = next((tree for tree in trees if tree.source == SYSFS), None) or next(iter(trees), None)
    gpus, nics = endpoints(tree) if tree else ([], [])
    return product(gpus, nics)


def _redirect_clause(tree: PciTree, a: PciDevice, b: PciDevice) -> str:
    """Return a clause on the bridges between two devices that redirect to the root complex."""
    above = set(tree.above(a.address)) ^ set(tree.above(b.address))
    names = [
        device.address
        for device in tree.devices
        if device.address in above and device.acs == "redirect"
    ]
    if not names:
        return ""
    return f"; but ACS at {', '.join(names)} sends it through the root complex, which is slower"


def _level(settings: NcclSettings, *, c2c: bool) -> tuple[str, str | None]:
    default = _DEFAULT_LEVEL_C2C if c2c else _DEFAULT_LEVEL
    text = settings.get(_LEVEL_SETTING)
    if text is None:
        return default, None
    if text[:1].isdigit():
        return _LEVEL_NUMBERS[min(int(text[:1]), len(_LEVEL_NUMBERS) - 1)], _LEVEL_SETTING
    level = _OTHER_NAMES.get(text, text)
    # NCCL ignores an unknown name.
    return (level, _LEVEL_SETTING) if level in _NCCL_LEVELS else (default, None)
