"""A vGPU that cannot talk to other GPUs directly."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.doctor.several import alike
from workbench.resources import Gpu, Snapshot, Unknown
from workbench.resources.gpus.vgpu import VgpuProfile, decode_profile


def vgpu_without_p2p(snapshot: Snapshot) -> Iterator[Finding]:
    """Find vGPUs whose profile rules out peer-to-peer over NVLink.

    Only time-sliced C-series vGPUs that own the whole frame buffer may use it.
    """
    several = len(snapshot.gpus) > 1
    for subject, evidence in alike(snapshot, _evidence):
        yield Finding(
            rule="vgpu_without_p2p",
            severity="warning" if several else "info",
            subject=subject,
            evidence=evidence,
            why="Such a vGPU has no peer-to-peer over NVLink: gradients between this VM's GPUs "
            "take the way through host memory."
            if several
            else "It works alone; were a second one added, the two would exchange gradients "
            "through host memory, not over NVLink.",
            cure="Ask for time-sliced C-series profiles that own the whole frame buffer, such as "
            f"{_whole(evidence)}, all from one device group; or for passthrough.",
            source="NVIDIA, Virtual GPU Software User Guide, Peer-to-Peer CUDA transfers",
        )


def _evidence(gpu: Gpu) -> str | None:
    cause = _cause(gpu)
    return None if cause is None else f"profile {gpu.vgpu_profile}: {cause}"


def _cause(gpu: Gpu) -> str | None:
    profile = _profile(gpu)
    if profile is None:
        return None
    if profile.mig_backed:
        return f"it is backed by a MIG instance of {profile.slices} slices"
    if profile.whole_frame_buffer is False:
        return f"{profile.memory_gb} GB of the board's {profile.board_memory_gb} GB"
    return None if profile.series == "C" else f"series {profile.series}, where C is for compute"


def _profile(gpu: Gpu) -> VgpuProfile | None:
    named = gpu.form == "vgpu" and isinstance(gpu.vgpu_profile, str)
    return decode_profile(str(gpu.vgpu_profile)) if named else None


def _whole(evidence: str) -> str:
    """Give the whole profile of the board that the evidence begins with."""
    profile = decode_profile(evidence.removeprefix("profile ").partition(":")[0])
    if profile is None or isinstance(profile.board_memory_gb, Unknown):
        return "A100-40C on a board of 40 GB"
    return f"{profile.board}-{profile.board_memory_gb}C"
