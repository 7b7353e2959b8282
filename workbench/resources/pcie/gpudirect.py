"""Whether NCCL uses GPUDirect RDMA between a GPU and a NIC: its rule for distance.

Where a topology file shows that GPU and CPU are joined by C2C (Grace), NCCL calls a
NIC at that CPU P2C rather than PHB, and uses it; sysfs does not show C2C.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from workbench.resources.files import read_text
from workbench.resources.nccl_settings import NcclSettings
from workbench.resources.pcie.distances import endpoints, measure, switches_above
from workbench.resources.pcie.records import SYSFS, GpuDirect, PciDevice, PciTree, in_nccls_words
from workbench.resources.unknown import Unknown

_ORDER = ("LOC", "PIX", "PXB", "P2C", "PHB", "SYS")
# NCCL's other names for a level, each put where it stands among those above.
_OTHER = {"NVL": "LOC", "NVB": "LOC", "C2C": "LOC", "PXN": "P2C"}
_OLD_NUMBERS = ("LOC", "PIX", "PXB", "PHB", "SYS", "SYS")
_DEFAULT = "PXB"
_DEFAULT_C2C = "P2C"  # unless NCCL_NET_GDR_C2C=0; of NCCL 2.27, earlier releases stop at PXB
_SETTING = "NCCL_NET_GDR_LEVEL"


def judge(trees: Sequence[PciTree], settings: NcclSettings, nodes: int) -> Iterator[GpuDirect]:
    """Judge every GPU with every NIC that matters to it.

    Parameters
    ----------
    trees
        The one that NCCL goes by first.
    settings
        NCCL's: ``NCCL_NET_GDR_LEVEL`` moves the limit.
    nodes
        NUMA nodes of the machine; 0 where that is not known.
    """
    c2c = any("c2c" in told for tree in trees for told in tree.told.values())
    level, set_by = _level(settings, c2c=c2c and settings.get("NCCL_NET_GDR_C2C") != "0")
    limit = f"{set_by}={level}" if set_by else f"{level}, NCCL's limit"
    for gpu, nic in _pairs(trees):
        # NCCL goes by the first tree that has either of the two.
        tree = next(one for one in trees if one.find(gpu.address) or one.find(nic.address))
        a, b = tree.find(gpu.address), tree.find(nic.address)
        possible, why = _one(tree, a, b, nodes, level, limit)
        if nic.rdma_devices == ():
            possible, why = False, "the NIC has no RDMA device in this VM"
        yield GpuDirect(gpu.address, nic.address, possible, why, tree.source)


def peer_memory(sysfs: Path) -> str | Unknown:
    """Name the kernel module that lets NICs reach GPU memory, with its version."""
    for path, name in (
        ("module/nvidia_peermem/version", "nvidia_peermem"),
        ("kernel/mm/memory_peers/nv_mem/version", "nv_peer_mem"),
    ):
        version = read_text(sysfs / path)
        if isinstance(version, str):
            return f"{name} {version}"
    return Unknown(
        "neither nvidia_peermem nor nv_peer_mem is loaded; NVIDIA's open driver does without "
        "(dma-buf), which sysfs does not show"
    )


def _one(
    tree: PciTree, a: PciDevice | None, b: PciDevice | None, nodes: int, level: str, limit: str
) -> tuple[bool | Unknown, str]:
    if a is None or b is None:
        why = "the topology file has only one of the two: NCCL joins the other on by sysfs"
        return Unknown(why), why
    refused = [one.address for one in (a, b) if tree.told.get(one.address, {}).get("gdr") == "0"]
    if refused:
        return False, f"the topology file says of {' and '.join(refused)} that it cannot (gdr=0)"
    distance = measure(tree, a, b, nodes)
    taken_for = in_nccls_words(distance)
    if isinstance(distance, Unknown) and type(a.numa_node) is not type(b.numa_node):
        taken_for = "SYS"  # NCCL takes -1 for one more node
    if taken_for == "PHB" and "c2c" in tree.told.get(a.address, {}):
        taken_for = "P2C"
    said = taken_for
    if isinstance(distance, str) and distance != taken_for:  # the matrix shows the other word
        said = f"{distance}, which NCCL takes for {taken_for},"
    if _ORDER.index(taken_for) <= _ORDER.index(level):
        return True, f"{said} is within {limit}{_redirected(tree, a, b)}"
    why = f"{said} is beyond {limit}"
    if tree.source == SYSFS and not switches_above(tree, a.address):
        why += (
            "; a guest may not see the host's switches: where GPU and NIC share one, a topology "
            "file (NCCL_TOPO_FILE) tells NCCL so"
        )
    return False, why


def _pairs(trees: Sequence[PciTree]) -> Iterator[tuple[PciDevice, PciDevice]]:
    """Give each GPU with each NIC that is really there: by sysfs, if there is one."""
    tree = next((one for one in trees if one.source == SYSFS), None) or next(iter(trees), None)
    gpus, nics = endpoints(tree) if tree else ([], [])
    return product(gpus, nics)


def _redirected(tree: PciTree, a: PciDevice, b: PciDevice) -> str:
    """Name the bridges on the way that send peer-to-peer traffic up to the root complex."""
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
    # NCCL passes over a word that it does not know.
    return (level, _SETTING) if level in _ORDER else (default, None)
