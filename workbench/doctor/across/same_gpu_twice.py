"""One GPU that two VMs show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations

from workbench.doctor.finding import Finding
from workbench.doctor.several import first_of
from workbench.resources import Snapshot


def same_gpu_twice(snapshots: Mapping[str, Snapshot]) -> Iterator[Finding]:
    """Find VMs, by two names, whose GPUs are the same ones."""
    uuids = {
        vm: {gpu.uuid for gpu in one.gpus if isinstance(gpu.uuid, str)}
        for vm, one in snapshots.items()
    }
    for first, second in combinations(uuids, 2):
        shared = sorted(uuids[first] & uuids[second])
        if shared:
            yield Finding(
                rule="same_gpu_twice",
                severity="error",
                subject=f"{first}, {second}",
                evidence=f"both show {first_of(shared, 2)}",
                why="They are one machine by two names, or two containers with one GPU: their "
                "ranks share its memory and its time, and where NCCL sees that it stops "
                "(Duplicate GPU detected).",
                cure="Name each VM once in `--hosts`; give each container GPUs of its own "
                "(`docker run --gpus '\"device=1\"'`).",
                source="NVIDIA, NCCL, src/init.cc, Duplicate GPU detected",
            )
