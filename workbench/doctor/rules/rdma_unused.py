"""RDMA is there, and NCCL is told not to use it."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.doctor.reading import unset
from workbench.resources import Snapshot
from workbench.resources.nccl_ports import active_ports, settings_of, tcp_only


def rdma_unused(snapshot: Snapshot) -> Iterator[Finding]:
    """Find active RDMA ports where a setting of NCCL leaves only TCP."""
    active = active_ports(snapshot)
    found = tcp_only(settings_of(snapshot))
    if not active or found is None:
        return
    yield Finding(
        rule="rdma_unused",
        severity="warning",
        subject=", ".join(str(nic.rdma_device) for nic in active),
        evidence=f"{'='.join(found)} is set, and {len(active)} RDMA "
        f"{'port is' if len(active) == 1 else 'ports are'} active",
        why="NCCL sends everything between VMs over TCP: through the kernel, with CPU time and "
        "host memory for each byte.",
        cure=unset(*found) + ".",
        source=f"NVIDIA, NCCL User Guide, {found[0]}",
    )
