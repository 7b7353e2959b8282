"""Determine whether NCCL uses GPUDirect RDMA between a GPU and a NIC, by their distance.

If a topology file shows a C2C link between GPU and CPU (Grace), the distance to a NIC at
that CPU is P2C rather than PHB for NCCL, which is near enough. sysfs does not show C2C.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from workbench.resources.files import read_text
from workbench.resources.nccl_settings import NcclSettings
from workbench.resources.pcie.distances import endpoints, measure, switches_above
from workbench.resources.pcie.records import SYSFS, GpuDirect, PciDevice, PciTree, nccl_level
from workbench.resources.unknown import Unknown

_ORDER = ("LOC", "PIX", "PXB", "P2C", "PHB", "SYS")
# NCCL's other names for a level, and the equivalent level above.
_OTHER = {"NVL": "LOC", "NVB": "LOC", "C2C": "LOC", "PXN": "P2C"}
_OLD_NUMBERS = ("LOC", "PIX", "PXB", "PHB", "SYS", "SYS")
_DEFAULT = "PXB"
_DEFAULT_C2C = "P2C"  # from NCCL 2.27 on, unless NCCL_NET_GDR_C2C=0; earlier it is PXB
_SETTING = "NCCL_NET_GDR_LEVEL"


def judge(trees: Sequence[PciTree], settings: NcclSettings, nodes: int) -> Iterator[GpuDirect]:
    """Yield the result for every GPU with every relevant NIC.

    Parameters
    ----------
    trees
        The trees, with the one that NCCL prefers first.
    settings
        NCCL's settings; ``NCCL_NET_GDR_LEVEL`` changes the limit.
    nodes
        Number of NUMA nodes of the machine; 0 if unknown.
    """
    c2c = any("c2c" in found for tree in trees for found in tree.told.values())
    level, set_by = _level(settings, c2c=c2c and settings.get("NCCL_NET_GDR_C2C") != "0")
    limit = f"{set_by}={level}" if set_by else f"{level}, NCCL's limit"
    for gpu, nic in _pairs(trees):
        # NCCL uses the first tree that contains either of the two.
        tree = next(one for one in trees if one.find(gpu.address) or one.find(nic.address))
        a, b = tree.find(gpu.address), tree.find(nic.address)
        possible, why = _one(tree, a, b, nodes, level, limit)
        if nic.rdma_devices == ():
            possible, why = False, "the NIC has no RDMA device in this VM"
        yield GpuDirect(gpu.address, nic.address, possible, why, tree.source)


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


def _one(
    tree: PciTree, a: PciDevice | None, b: PciDevice | None, nodes: int, level: str, limit: str
) -> tuple[bool | Unknown, str]:
    if a is None or b is None:
        why = "the topology file has only one of the two: NCCL adds the other from sysfs"
        return Unknown(why), why
    excluded = [
        one.address for one in (a, b) if tree.file_attributes(one.address).get("gdr") == "0"
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
    if _ORDER.index(nccl_name) <= _ORDER.index(level):
        return True, f"{shown} is within {limit}{_redirected(tree, a, b)}"
    why = f"{shown} is beyond {limit}"
    if tree.source == SYSFS and not switches_above(tree, a.address):
        why += (
            "; a guest may not see the host's switches: if GPU and NIC share one, provide it to "
            "NCCL in a topology file (NCCL_TOPO_FILE)"
        )
    return False, why


def _pairs(trees: Sequence[PciTree]) -> Iterator[tuple[PciDevice, PciDevice]]:
    """Return each GPU with each NIC that exists: by sysfs, if it has a tree."""
    tree = next((one for one in trees if one.source == SYSFS), None) or next(iter(trees), None)
    gpus, nics = endpoints(tree) if tree else ([], [])
    return product(gpus, nics)


def _redirected(tree: PciTree, a: PciDevice, b: PciDevice) -> str:
    """Return a clause on the bridges between them that redirect to the root complex."""
    above = set(tree.above(a.address)) ^ set(tree.above(b.address))
    names = [one.address for one in tree.devices if one.address in above and one.acs == "redirect"]
    if not names:
        return ""
    return f"; but ACS at {', '.join(names)} sends it through the root complex, which is slower"


def _level(settings: NcclSettings, *, c2c: bool) -> tuple[str, str | None]:
    default = _DEFAULT_C2C if c2c else _DEFAULT
    text = settings.get(_SETTING)
    if text is None:
        return default, None
    if text[:1].isdigit():
        return _OLD_NUMBERS[min(int(text[:1]), len(_OLD_NUMBERS) - 1)], _SETTING
    level = _OTHER.get(text, text)
    # NCCL ignores an unknown name.
    return (level, _SETTING) if level in _ORDER else (default, None)
