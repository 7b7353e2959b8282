"""NCCL is told not to let GPUs talk directly."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.doctor.reading import nccl_setting, unset
from workbench.resources import Snapshot
from workbench.resources.nccl_settings import is_on

_NEVER = ("LOC", "0")


def nccl_p2p_disabled(snapshot: Snapshot) -> Iterator[Finding]:
    """Find settings that switch peer-to-peer off where there are several GPUs."""
    found = _setting(snapshot)
    if len(snapshot.gpus) < 2 or found is None:
        return
    yield Finding(
        rule="nccl_p2p_disabled",
        severity="warning",
        subject="this VM",
        evidence=f"{'='.join(found)} is set, with {len(snapshot.gpus)} GPUs",
        why="NCCL uses neither NVLink nor PCIe between these GPUs directly: gradients take the "
        "way through host memory.",
        cure=f"{unset(*found)}. NVIDIA lists it for debugging, not for production.",
        source=f"NVIDIA, NCCL User Guide, {found[0]}",
    )


def _setting(snapshot: Snapshot) -> tuple[str, str] | None:
    disabled, level = (nccl_setting(snapshot, x) for x in ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"))
    if disabled is not None and is_on(disabled):
        return "NCCL_P2P_DISABLE", disabled
    return ("NCCL_P2P_LEVEL", level) if level in _NEVER else None
