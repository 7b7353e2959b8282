"""A GPU that the driver can no longer reach."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from workbench.doctor.finding import Finding
from workbench.doctor.several import alike
from workbench.resources import Gpu, Snapshot, Unknown

_LOST, _RESET = "the GPU is lost", "the GPU needs a reset"
"""How reasons begin where NVML answers GPU_IS_LOST and RESET_REQUIRED."""


def gpu_lost(snapshot: Snapshot) -> Iterator[Finding]:
    """Find GPUs that fell off the bus, or that wait for a reset."""
    for subject, evidence in alike(snapshot, _reason):
        lost = evidence.startswith(_LOST)
        yield Finding(
            rule="gpu_lost",
            severity="error",
            subject=subject,
            evidence=evidence,
            why="A rank on this GPU ends at its first call of CUDA, and all other ranks wait for "
            "it.",
            cure="Save the training. `sudo dmesg | grep -i xid` says what came before (79: it fell "
            "off the bus). "
            + (
                "Restart the VM; if it comes back, ask the administrator to check the GPU's "
                "power, temperature and seat on the host."
                if lost
                else "`sudo nvidia-smi --gpu-reset -i N` where the VM may, else restart the VM."
            ),
            source="NVIDIA, XID Errors (79, GPU has fallen off the bus)",
        )


def _reason(gpu: Gpu) -> str | None:
    values = (getattr(gpu, field.name) for field in fields(gpu))
    reasons = [value.reason for value in values if isinstance(value, Unknown)]
    return next((one for one in reasons if one.startswith((_LOST, _RESET))), None)
