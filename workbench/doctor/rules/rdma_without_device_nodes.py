"""RDMA ports in sysfs that this process cannot open."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.resources import Snapshot, Unknown

_CONTAINER = (
    "`docker run --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1 ...`; in "
    "Kubernetes a resource of an RDMA device plugin."
)
_VM = "`sudo modprobe ib_uverbs`, and for good: `ib_uverbs` as a line in /etc/modules-load.d."


def rdma_without_device_nodes(snapshot: Snapshot) -> Iterator[Finding]:
    """Find RDMA devices where /dev/infiniband has no `uverbs` node, as in a plain container."""
    nodes, container = snapshot.host.rdma_device_nodes, snapshot.host.container
    rdma = sorted({str(nic.rdma_device) for nic in snapshot.nics if nic.kind == "rdma"})
    if not rdma or isinstance(nodes, Unknown) or any(x.startswith("uverbs") for x in nodes):
        return
    inside = isinstance(container, str) and container != "none"
    yield Finding(
        rule="rdma_without_device_nodes",
        severity="error",
        subject=f"the {container} container" if inside else "this VM",
        evidence=f"sysfs shows {', '.join(rdma)}, but /dev/infiniband has no uverbs device",
        why="Programs reach RDMA through these devices alone: NCCL and MPI find no RDMA here and "
        "take TCP.",
        cure=_CONTAINER if inside else f"{_VM} In a container: {_CONTAINER}",
        source="Linux kernel, Documentation/infiniband/user_verbs.rst",
    )
