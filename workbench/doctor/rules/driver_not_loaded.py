"""The VM has an NVIDIA GPU, but no driver holds it."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.resources import Snapshot, Unknown


def driver_not_loaded(snapshot: Snapshot) -> Iterator[Finding]:
    """Find NVIDIA display devices on the PCI bus that NVML knows nothing of."""
    addresses = snapshot.host.nvidia_pci_addresses
    probe = snapshot.probes["gpus"]
    if isinstance(addresses, Unknown) or not addresses or probe.status != "absent":
        return
    yield Finding(
        rule="driver_not_loaded",
        severity="error",
        subject="this VM",
        evidence=f"NVIDIA GPU on the PCI bus at {', '.join(addresses)}, but {probe.reason}",
        why="The VM was given a GPU that nothing in it can use: training runs on the CPU.",
        cure="Install the guest driver that fits the host's vGPU manager (for passthrough: the "
        "data-centre driver), then `sudo modprobe nvidia`. In a container, start it with "
        "`--gpus all` under the NVIDIA Container Toolkit.",
        source="NVIDIA, Virtual GPU Software User Guide, Installing the guest VM driver",
    )
