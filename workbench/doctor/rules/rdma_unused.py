"""RDMA is there, and NCCL is told not to use it."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.doctor.reading import is_on, nccl_setting, unset
from workbench.resources import Snapshot


def rdma_unused(snapshot: Snapshot) -> Iterator[Finding]:
    """Find active RDMA ports where a setting of NCCL leaves only TCP."""
    active = [x for x in snapshot.nics if x.kind == "rdma" and x.state == "active"]
    found = _setting(snapshot)
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


def _setting(snapshot: Snapshot) -> tuple[str, str] | None:
    disabled, net = (nccl_setting(snapshot, x) for x in ("NCCL_IB_DISABLE", "NCCL_NET"))
    if disabled is not None and is_on(disabled):
        return "NCCL_IB_DISABLE", disabled
    if net is not None and net.lower() == "socket":
        return "NCCL_NET", net
    return None
