"""VMs with other GPUs than the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from workbench.doctor.across.odd import known, odd, same
from workbench.doctor.finding import Finding
from workbench.doctor.reading import unclear_devices
from workbench.resources import Gpu, Snapshot

_NONE = "no GPU"


def gpus_unlike(snapshots: Mapping[str, Snapshot]) -> Iterator[Finding]:
    """Find another number of GPUs, another model, or another form or vGPU profile."""
    for found in odd(snapshots, _number):
        lacking = any(what.startswith(_NONE) for what in found.has.values())
        yield Finding(
            rule="gpus_unlike",
            severity="error" if lacking else "warning",
            subject=found.vms,
            evidence=found.evidence,
            why="Ranks without a GPU cannot take part where the others have one."
            if lacking
            else "Ranks are shared out by GPU: the VM with the fewest bounds a cluster of equal "
            "VMs, and GPUs beyond that stay idle.",
            cure="Ask for VMs with the same GPUs, or say how many ranks each is to run "
            "(`%cluster start --hosts vm1:4,vm2:8`).",
            source="Horovod, Run Horovod: hosts and slots",
        )
    for found in odd(snapshots, _models):
        yield Finding(
            rule="gpus_unlike",
            severity="warning",
            subject=found.vms,
            evidence=found.evidence,
            why="Every step waits for the slowest rank: faster GPUs, and those with more memory, "
            "work at the pace and with the batch of the others.",
            cure="Ask for VMs of one kind: the same model in the same form, vGPUs of the same "
            "profile.",
            source="PyTorch, DistributedDataParallel: ranks in step",
        )


def _number(snapshot: Snapshot) -> str | None:
    count = len(snapshot.gpus)
    probe = snapshot.probes.get("gpus")
    if unclear_devices(snapshot) or (probe is not None and probe.status == "unknown"):
        return None
    if count:
        return f"{count} GPU{'s' if count > 1 else ''}"
    failed = probe is not None and probe.status == "failed"
    return f"{_NONE} that answers" if failed else _NONE


def _models(snapshot: Snapshot) -> str | None:
    words = [_words(gpu) for gpu in snapshot.gpus]
    return None if None in words else same([one for one in words if one])


def _words(gpu: Gpu) -> str | None:
    """Write what a GPU is; None where that is not known, as of a topology file's."""
    name, form = known(gpu.name), known(gpu.form)
    if gpu.form == "vgpu":
        form = None if name and name.endswith(str(gpu.vgpu_profile)) else known(gpu.vgpu_profile)
    return ", ".join(filter(None, (name, form))) or None
