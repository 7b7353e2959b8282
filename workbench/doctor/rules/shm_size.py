"""A /dev/shm too small for DataLoader workers and NCCL."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.resources import Snapshot
from workbench.resources.summary import show_bytes

_DOCKER_DEFAULT = 64 << 20
_ENOUGH = 1 << 30


def shm_size(snapshot: Snapshot) -> Iterator[Finding]:
    """Find a /dev/shm of less than 1 GiB; containers get 64 MiB unless told otherwise."""
    size = snapshot.host.shm_bytes
    if not isinstance(size, int) or size >= _ENOUGH:
        return
    yield Finding(
        rule="shm_size",
        severity="error" if size <= _DOCKER_DEFAULT else "warning",
        subject="this VM",
        evidence=f"the shared memory of /dev/shm holds {show_bytes(size)}",
        why="DataLoader workers and NCCL pass data through /dev/shm: workers die with a bus error, "
        "or NCCL fails to start, once it is full.",
        cure="`docker run --shm-size=8g` (or `--ipc=host`); in Kubernetes an emptyDir with "
        "`medium: Memory` on /dev/shm; on a VM `mount -o remount,size=8g /dev/shm`.",
        source="PyTorch README, Docker image; NVIDIA, NCCL User Guide, Troubleshooting",
    )
