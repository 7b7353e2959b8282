"""A topology file that says something else than the machine itself."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.doctor.pci_names import pci_name
from workbench.doctor.several import first_of
from workbench.resources import Snapshot, Unknown
from workbench.resources.pcie.records import SYSFS, TOPOLOGY_FILE, Difference

_SWITCHED = ("PIX", "PXB")


def topology_sources_differ(snapshot: Snapshot) -> Iterator[Finding]:
    """Find distances that file and kernel tell differently, where the kernel can be believed.

    It can on bare metal, and in a VM where it shows a switch above both. A VM that shows
    none is what such files are made for: there they must differ.
    """
    if isinstance(snapshot.pcie, Unknown):
        return
    bare = snapshot.host.hypervisor == "none"
    wrong = []
    for one in snapshot.pcie.differences():
        said = _said(one)
        if len(set(said.values())) == 2 and (bare or said[SYSFS] in _SWITCHED):
            pair = f"{pci_name(snapshot, one.a)} and {pci_name(snapshot, one.b)}"
            wrong.append(f"{pair} ({said[TOPOLOGY_FILE]}, not {said[SYSFS]})")
    if not wrong:
        return
    yield Finding(
        rule="topology_sources_differ",
        severity="warning",
        subject="this VM",
        evidence=f"the topology file contradicts the PCIe tree of the kernel: {first_of(wrong)}",
        why="NCCL believes the file: it chooses ways that are slower than it thinks, or passes "
        "over a short one. The file may be that of another kind of VM.",
        cure=f"Compare {snapshot.pcie.topology_file} with `lspci -tv`; fetch the file of this kind "
        "of VM, or take NCCL_TOPO_FILE away.",
        source="NVIDIA, NCCL User Guide, Environment Variables, NCCL_TOPO_FILE",
    )


def _said(difference: Difference) -> dict[str, str]:
    known = {one.source: one.distance for one in difference.distances}
    words = {source: known.get(source) for source in (TOPOLOGY_FILE, SYSFS)}
    return {
        source: "PHB" if word == "NODE" else word  # NCCL knows no NODE
        for source, word in words.items()
        if isinstance(word, str)
    }
