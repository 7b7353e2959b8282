"""What unified memory does to vGPUs, as far as a guest sees it."""

from __future__ import annotations

from workbench.resources import Gpu, GpuPair
from workbench.resources.gpus.vgpu import VgpuProfile


def shows_unified_memory(pair: GpuPair, one: Gpu, other: Gpu) -> bool:
    """Say whether two vGPUs look as A100s do with unified memory on: PIX where NVLink could be.

    The switch itself (`enable_uvm`) is the host's, and no guest can read it.
    """
    return (
        _whole_a100(one)
        and _whole_a100(other)
        and pair.topology == "PIX"
        and isinstance(pair.p2p_nvlink, str)
        and pair.p2p_nvlink != "ok"
    )


def _whole_a100(gpu: Gpu) -> bool:
    profile = gpu.vgpu if gpu.form == "vgpu" else None
    return (
        isinstance(profile, VgpuProfile)
        and profile.board.startswith("A100")
        and profile.p2p is True
    )
