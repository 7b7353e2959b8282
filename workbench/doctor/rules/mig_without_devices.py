"""A GPU in MIG mode that nobody has cut."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.doctor.several import named
from workbench.resources import Snapshot


def mig_without_devices(snapshot: Snapshot) -> Iterator[Finding]:
    """Find GPUs whose MIG mode is on and of which no device was made."""
    uncut = {
        gpu.index
        for gpu in snapshot.gpus
        if gpu.mig_mode is True and gpu.form in ("whole", "passthrough")
    }
    if not uncut:
        return
    yield Finding(
        rule="mig_without_devices",
        severity="error",
        subject=named(uncut),
        evidence="MIG mode is on, and no MIG device is made",
        why="In MIG mode CUDA runs on MIG devices only: without one it finds no GPU here.",
        cure="For a whole GPU switch MIG off: `sudo nvidia-smi -i N -mig 0`. Else make a device, "
        "such as one of the whole GPU: `sudo nvidia-smi mig -i N -cgi 0 -C`.",
        source="NVIDIA, Multi-Instance GPU User Guide, Creating GPU Instances",
    )
