"""Access control that sends traffic between GPU and NIC up to the CPU."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.doctor.pci_names import pci_name
from workbench.doctor.several import first_of
from workbench.resources import Snapshot, Unknown
from workbench.resources.pcie.records import SYSFS, Pcie


def acs_redirect(snapshot: Snapshot) -> Iterator[Finding]:
    """Find ACS redirection between a GPU and an RDMA port under one switch, on bare metal.

    A VM needs ACS on its host, and then ATS: see ``ats_off``.
    """
    pcie = snapshot.pcie
    if isinstance(pcie, Unknown) or snapshot.host.hypervisor != "none":
        return
    bridges: dict[str, None] = {}
    pairs = []
    for one in pcie.gpudirect:
        between = _redirecting(pcie, one.gpu, one.nic) if one.possible is True else []
        if between:
            bridges.update(dict.fromkeys(between))
            pairs.append(f"{pci_name(snapshot, one.gpu)} and {pci_name(snapshot, one.nic)}")
    if not pairs:
        return
    yield Finding(
        rule="acs_redirect",
        severity="warning",
        subject="this VM",
        evidence=f"ACS at {', '.join(bridges)} redirects what passes between {first_of(pairs)}",
        why="GPUDirect RDMA then goes up to the CPU's root complex and back: much slower, and it "
        "may hang.",
        cure="Switch IO virtualisation (VT-d, AMD-Vi) off in the BIOS where no VM needs it, or "
        "after every start: "
        + "; ".join(f"`sudo setpci -s {bridge} ECAP_ACS+0x6.w=0000`" for bridge in bridges)
        + ".",
        source="NVIDIA, NCCL User Guide, Troubleshooting, PCI Access Control Services",
    )


def _redirecting(pcie: Pcie, gpu: str, nic: str) -> list[str]:
    """Give the bridges between two devices that share a switch, if they redirect."""
    tree = pcie.tree(SYSFS)
    shared = [d.distance for d in pcie.between(gpu, nic) if d.source == SYSFS]
    if tree is None or shared not in (["PIX"], ["PXB"]):
        return []
    way = set(tree.above(gpu)) ^ set(tree.above(nic))
    return [one.address for one in tree.devices if one.address in way and one.acs == "redirect"]
