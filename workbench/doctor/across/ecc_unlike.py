"""ECC on some VMs only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from workbench.doctor.across.odd import odd, same
from workbench.doctor.finding import Finding
from workbench.resources import Snapshot
from workbench.resources.gpus.records import Ecc


def ecc_unlike(snapshots: Mapping[str, Snapshot]) -> Iterator[Finding]:
    """Find VMs whose GPUs correct errors beside VMs whose GPUs do not."""
    for found in odd(snapshots, _mode):
        yield Finding(
            rule="ecc_unlike",
            severity="info",
            subject=found.vms,
            evidence=found.evidence,
            why="ECC off lets errors of the memory pass unseen into the gradients of all; on some "
            "boards it costs memory and bandwidth where it is on.",
            cure="The same on all: `sudo nvidia-smi -e 1`, then a reset or restart.",
            source="NVIDIA, nvidia-smi documentation, ECC Mode",
        )


def _mode(snapshot: Snapshot) -> str | None:
    modes = [gpu.ecc.enabled for gpu in snapshot.gpus if isinstance(gpu.ecc, Ecc)]
    words = same(sorted("on" if mode else "off" for mode in modes if isinstance(mode, bool)))
    return None if words is None else f"ECC {words}"
