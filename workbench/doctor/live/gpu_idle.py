"""GPUs that are taken and not used."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.resources import Snapshot, Unknown
from workbench.resources.summary import show_bytes
from workbench.resources.usage import ProcessUse, Sample

_MINUTE, _HOUR = 60, 3600
_TO_KNOW_S = 5 * _MINUTE
_TOO_LONG_S = 30 * _MINUTE


def gpu_idle(_snapshot: Snapshot, sample: Sample) -> Iterator[Finding]:
    """Find GPUs idle for minutes while a process holds memory on them; who, and how long."""
    for gpu in sample.gpus:
        if isinstance(gpu.idle_s, Unknown) or gpu.idle_s < _TO_KNOW_S:
            continue
        holders = _holders(sample, gpu.index)
        yield Finding(
            rule="gpu_idle",
            severity="warning" if gpu.idle_s >= _TOO_LONG_S else "info",
            subject=f"GPU {gpu.index}",
            evidence=f"idle for {_duration(gpu.idle_s)} while memory is held on it"
            + (f": {'; '.join(_words(one, gpu.index) for one in holders)}" if holders else ""),
            why="Nobody else gets this memory, and in a shared pool nobody else gets the GPU.",
            cure=" ".join(dict.fromkeys(map(_cure, holders)))
            or "`nvidia-smi` lists who holds it; end that process, or ask its owner.",
            source="NVIDIA, nvidia-smi documentation, Utilization; PyTorch, CUDA semantics, "
            "Memory management",
        )


def _holders(sample: Sample, index: int) -> list[ProcessUse]:
    processes = () if isinstance(sample.processes, Unknown) else sample.processes
    return [one for one in processes if any(share.index == index for share in one.gpus)]


def _words(process: ProcessUse, index: int) -> str:
    share = next(one for one in process.gpus if one.index == index)
    held = share.memory_used_bytes
    size = "" if isinstance(held, Unknown) else f", {show_bytes(held)}"
    return f"{_who(process)} (pid {process.pid}{size})"


def _who(process: ProcessUse) -> str:
    if process.kind == "rank":
        of = f" of cluster {process.cluster}" if process.cluster else ""
        return f"rank {process.rank}{of}" if process.rank is not None else f"a rank{of}"
    if process.kind == "kernel":
        return f"the kernel of {process.notebook}" if process.notebook else "a Jupyter kernel"
    return process.name


def _cure(process: ProcessUse) -> str:
    if process.kind == "rank":
        return "`%cluster stop`, and next time `%cluster start --release-after 30m`."
    if process.kind == "kernel":
        return (
            "Shut the kernel down, or in it `del` what lies on the GPU and then "
            "`torch.cuda.empty_cache()`."
        )
    return f"`kill {process.pid}` where it is yours."


def _duration(seconds: float) -> str:
    if seconds < 2 * _HOUR:
        return f"{int(seconds // _MINUTE)} min"
    return f"{int(seconds // _HOUR)} h {int(seconds % _HOUR // _MINUTE)} min"
