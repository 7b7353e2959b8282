"""A RoCE port that has no address for RoCE v2."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.resources import Nic, Snapshot

# Drivers whose Ethernet ports speak RoCE. Others, such as irdma, may speak iWARP.
_ROCE = ("mlx4_core", "mlx5_core", "bnxt_en", "vmw_pvrdma")


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
        why="The kernel makes a RoCE v2 address from each IP address of the interface. Without "
        "one, RoCE does not get past the Ethernet broadcast domain, or not out of the VM at all.",
        cure=f"Give {nic.name} an address and bring it up: `sudo ip addr add ADDRESS/PREFIX dev "
        f"{nic.name}; sudo ip link set dev {nic.name} up`. In a container without the interface: "
        "`--network=host`. For a VMware PVRDMA adapter ask for RoCE v2 in the VM's hardware.",
        source="NVIDIA, MLNX_OFED documentation, RDMA over Converged Ethernet, "
        "GID table population",
    )
