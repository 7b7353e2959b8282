"""A driver that forgets the GPU whenever nobody uses it."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.doctor.several import alike
from workbench.resources import Gpu, Snapshot


def persistence_mode_off(snapshot: Snapshot) -> Iterator[Finding]:
    """Find GPUs whose state the driver lets go of when the last process leaves."""
    for subject, evidence in alike(snapshot, _off):
        yield Finding(
            rule="persistence_mode_off",
            severity="info",
            subject=subject,
            evidence=evidence,
            why="The first process after a pause waits until the GPU is set up again, and what was "
            "set with nvidia-smi is lost meanwhile.",
            cure="`sudo systemctl enable --now nvidia-persistenced`; where that service is "
            "missing, `sudo nvidia-smi -pm 1` after each start.",
            source="NVIDIA, Driver Persistence",
        )


def _off(gpu: Gpu) -> str | None:
    return "persistence mode is off" if gpu.persistence_mode is False else None
