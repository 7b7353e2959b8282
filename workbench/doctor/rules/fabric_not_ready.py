"""A GPU behind NVSwitches that has not joined their fabric."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.doctor.several import alike
from workbench.resources import Gpu, Snapshot
from workbench.resources.gpus.records import Fabric, NvLinks


def fabric_not_ready(snapshot: Snapshot) -> Iterator[Finding]:
    """Find GPUs whose registration with the fabric has not ended, or has failed."""
    for subject, evidence in alike(snapshot, _not_ready):
        yield Finding(
            rule="fabric_not_ready",
            severity="error",
            subject=subject,
            evidence=evidence,
            why="CUDA does not start before Fabric Manager has set up the NVSwitches "
            "(cudaErrorSystemNotReady); a GPU that fails to register has no peer-to-peer over "
            "NVLink.",
            cure="Where the VM has all GPUs and the NVSwitches: `sudo systemctl restart "
            "nvidia-fabricmanager`, in the version of the driver. Where the host keeps the "
            "NVSwitches: ask the administrator to check Fabric Manager there. "
            "`nvidia-smi -q | grep -A2 Fabric` shows the state.",
            source="NVIDIA, Fabric Manager User Guide",
        )


def _not_ready(gpu: Gpu) -> str | None:
    fabric = gpu.nvlink.fabric if isinstance(gpu.nvlink, NvLinks) else None
    if not isinstance(fabric, Fabric):
        return None
    if fabric.state in ("not started", "in progress"):
        return f"registration with the NVSwitch fabric is {fabric.state}"
    if isinstance(fabric.status, str) and fabric.status != "success":
        return f"registration with the NVSwitch fabric ended with: {fabric.status}"
    return None
