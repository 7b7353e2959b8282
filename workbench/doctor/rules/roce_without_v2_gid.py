"""A RoCE port that has no address for RoCE v2."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.resources import Nic, Snapshot

# Drivers whose Ethernet ports speak RoCE. Others, such as irdma, may speak iWARP.
_ROCE = ("mlx4_core", "mlx5_core", "bnxt_en", "vmw_pvrdma")

_CURE_V1 = (
    "The adapter is set to RoCE v1. For VMware PVRDMA choose RoCE v2 as the adapter's device "
    "protocol in the VM's settings; else ask the administrator for the adapter's RoCE mode. Until "
    "then keep the VMs in one Ethernet network."
)
_CURE_EMPTY = (
    "Entries are made from the interface's addresses: `sudo ip addr add ADDRESS/PREFIX dev "
    "{interface}; sudo ip link set dev {interface} up`. In a container that does not have the "
    "interface: `--network=host`."
)


def roce_without_v2_gid(snapshot: Snapshot) -> Iterator[Finding]:
    """Find active RoCE ports whose GID table has no entry of RoCE v2."""
    for nic in snapshot.nics:
        roce = nic.kind == "rdma" and nic.link_layer == "Ethernet" and nic.driver in _ROCE
        known = all(isinstance(gid.type, str) for gid in nic.gids)
        if roce and known and nic.state == "active" and not _has_v2(nic):
            yield _finding(nic)


def _has_v2(nic: Nic) -> bool:
    return any(gid.type == "RoCE v2" for gid in nic.gids)


def _finding(nic: Nic) -> Finding:
    return Finding(
        rule="roce_without_v2_gid",
        severity="warning",
        subject=f"{nic.rdma_device}",
        evidence=f"port {nic.rdma_port} is active, but "
        + (
            f"all {len(nic.gids)} entries of its GID table are RoCE v1"
            if nic.gids
            else "no entry of its GID table is set"
        ),
        why="RoCE v1 does not get past the Ethernet broadcast domain; a port without any entry "
        "reaches nobody.",
        cure=_CURE_V1 if nic.gids else _CURE_EMPTY.format(interface=nic.name),
        source="NVIDIA, MLNX_OFED documentation, RDMA over Converged Ethernet, "
        "GID table population",
    )
