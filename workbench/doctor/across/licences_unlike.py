"""vGPUs that have their licence on some VMs only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from workbench.doctor.across.odd import odd, same
from workbench.doctor.finding import Finding
from workbench.resources import Snapshot
from workbench.resources.gpus.records import Licence


def licences_unlike(snapshots: Mapping[str, Snapshot]) -> Iterator[Finding]:
    """Find vGPUs without a licence beside VMs whose vGPUs have one."""
    for found in odd(snapshots, _state):
        yield Finding(
            rule="licences_unlike",
            severity="warning",
            subject=", ".join(vm for vm, has in found.has.items() if "unlicensed" in has),
            evidence=found.evidence,
            why="After a while the driver slows an unlicensed vGPU down, and every step of all "
            "VMs waits for its ranks.",
            cure="Copy /etc/nvidia/ClientConfigToken from a VM that is licensed, then "
            "`sudo systemctl restart nvidia-gridd` (`journalctl -u nvidia-gridd` says why not).",
            source="NVIDIA, Virtual GPU Client Licensing User Guide",
        )


def _state(snapshot: Snapshot) -> str | None:
    states = [
        gpu.licence.state
        for gpu in snapshot.gpus
        if gpu.form == "vgpu" and isinstance(gpu.licence, Licence)
    ]
    words = same(sorted(state for state in states if isinstance(state, str)))
    return None if words is None else f"{words} vGPUs"
