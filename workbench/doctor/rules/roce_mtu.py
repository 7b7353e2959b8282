"""A RoCE link with an MTU made for the office network."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.resources import Snapshot

# RoCE packets carry up to 4096 bytes; with headers that needs an Ethernet MTU of 4200.
_ENOUGH = 4200


def roce_mtu(snapshot: Snapshot) -> Iterator[Finding]:
    """Find RoCE interfaces whose MTU is too small for RoCE's packets of 4096 bytes."""
    for nic in snapshot.nics:
        roce = nic.kind == "rdma" and nic.link_layer == "Ethernet"
        if roce and isinstance(nic.mtu, int) and nic.mtu < _ENOUGH:
            yield Finding(
                rule="roce_mtu",
                severity="warning",
                subject=nic.name,
                evidence=f"MTU {nic.mtu} on a RoCE link",
                why="RoCE takes the next power of two that fits, 1024 bytes for an MTU of 1500: "
                "four times the packets for the same gradients.",
                cure=f"`sudo ip link set dev {nic.name} mtu 9000` in every VM, and the same on "
                "the virtual switch and the physical switches between them.",
                source="NVIDIA, MLNX_OFED documentation, RDMA over Converged Ethernet",
            )
