"""A GPU that takes no process, or one only."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.doctor.several import alike
from workbench.resources import Gpu, Snapshot


def compute_mode(snapshot: Snapshot) -> Iterator[Finding]:
    """Find GPUs in another compute mode than the default."""
    for subject, mode in alike(snapshot, _mode):
        none = mode == "prohibited"
        yield Finding(
            rule="compute_mode",
            severity="error" if none else "info",
            subject=subject,
            evidence=f"compute mode is {mode}",
            why="No process may use CUDA on it: training stops at its first call."
            if none
            else "One rank per GPU works; a second rank, or the notebook's own kernel, that "
            "touches the same GPU gets an error.",
            cure="`sudo nvidia-smi -c DEFAULT` for all GPUs of this VM (with `-i N` for one).",
            source="NVIDIA, nvidia-smi documentation, compute mode",
        )


def _mode(gpu: Gpu) -> str | None:
    mode = gpu.compute_mode
    return mode if isinstance(mode, str) and mode in ("exclusive process", "prohibited") else None
