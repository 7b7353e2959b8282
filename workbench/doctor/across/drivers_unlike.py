"""VMs with other versions of NVIDIA's driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from workbench.doctor.across.odd import known, odd, same
from workbench.doctor.finding import Finding
from workbench.resources import Snapshot


def drivers_unlike(snapshots: Mapping[str, Snapshot]) -> Iterator[Finding]:
    """Find VMs whose NVIDIA driver, and with it the newest CUDA that it serves, differs."""
    for found in odd(snapshots, _driver):
        yield Finding(
            rule="drivers_unlike",
            severity="warning",
            subject=found.vms,
            evidence=found.evidence,
            why="A program built for the newer CUDA does not start on the older driver, and NCCL "
            "may choose other ways on each: such errors come from one VM only.",
            cure="Install the same driver on every VM; for a vGPU one that fits the host's "
            "(`nvidia-smi --query-gpu=driver_version --format=csv`).",
            source="NVIDIA, CUDA Compatibility; Virtual GPU Software, Release Notes",
        )


def _driver(snapshot: Snapshot) -> str | None:
    known_ones = [
        f"NVIDIA driver {gpu.driver_version} (CUDA {known(gpu.cuda_version) or 'not known'})"
        for gpu in snapshot.gpus
        if isinstance(gpu.driver_version, str)
    ]
    return same(known_ones)
