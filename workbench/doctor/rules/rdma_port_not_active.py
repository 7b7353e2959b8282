"""An RDMA port that carries nothing."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.resources import Nic, Snapshot

_CURE_DOWN = (
    "Bring the interface up (`ip link set dev {interface} up`) and ask the administrator for the "
    "cable, the switch port and the VF's link state "
    "(on the host: `ip link set dev PF vf N state auto`)."
)
_CURE_INIT = (
    "The link is up but no subnet manager has configured it: ask the administrator to start one "
    "(`systemctl start opensm` on one node, or on the switch)."
)


def rdma_port_not_active(snapshot: Snapshot) -> Iterator[Finding]:
    """Find RDMA ports in another state than active."""
    for nic in snapshot.nics:
        if nic.kind == "rdma" and isinstance(nic.state, str) and nic.state != "active":
            yield _finding(nic)


def _finding(nic: Nic) -> Finding:
    waits = nic.state in ("init", "armed") and nic.link_layer == "InfiniBand"
    return Finding(
        rule="rdma_port_not_active",
        severity="error",
        subject=f"{nic.rdma_device}",
        evidence=f"port {nic.rdma_port} is in state {nic.state}",
        why="NCCL and MPI skip the port: traffic goes over fewer ports, or over TCP.",
        cure=_CURE_INIT if waits else _CURE_DOWN.format(interface=nic.name),
        source="Linux kernel, Documentation/ABI/stable/sysfs-class-infiniband",
    )
