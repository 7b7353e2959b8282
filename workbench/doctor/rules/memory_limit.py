"""A limit on memory far below what the VM has."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.resources import Snapshot
from workbench.resources.summary import show_bytes

_FAR_BELOW = 0.5


def memory_limit(snapshot: Snapshot) -> Iterator[Finding]:
    """Find a cgroup's limit of less than half of the VM's memory."""
    limit, memory = snapshot.host.memory_limit_bytes, snapshot.host.memory_bytes
    if not isinstance(limit, int) or not isinstance(memory, int) or limit >= memory * _FAR_BELOW:
        return
    yield Finding(
        rule="memory_limit",
        severity="info",
        subject="this VM",
        evidence=f"the processes of this cgroup may use {show_bytes(limit)} of the VM's "
        f"{show_bytes(memory)} ({limit / memory:.0%})",
        why="Beyond it the kernel kills a process of the group, a rank or this kernel, while the "
        "VM has memory free. Files in /dev/shm count too.",
        cure="`docker run --memory=...`; in Kubernetes `resources.limits.memory` of the "
        "container; `MemoryMax=` of a systemd service; `mem_limit` of JupyterHub's spawner. If it "
        "is meant so: fewer DataLoader workers and prefetched batches.",
        source="Linux kernel, Documentation/admin-guide/cgroup-v2.rst, memory.max",
    )
