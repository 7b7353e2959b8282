"""NCCL is told not to use shared memory."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.doctor.reading import nccl_setting, unset
from workbench.resources import Snapshot
from workbench.resources.nccl_settings import is_on

_NAME = "NCCL_SHM_DISABLE"


def nccl_shm_disabled(snapshot: Snapshot) -> Iterator[Finding]:
    """Find NCCL_SHM_DISABLE where there are several GPUs."""
    value = nccl_setting(snapshot, _NAME)
    if len(snapshot.gpus) < 2 or value is None or not is_on(value):
        return
    yield Finding(
        rule="nccl_shm_disabled",
        severity="warning",
        subject="this VM",
        evidence=f"{_NAME}={value} is set, with {len(snapshot.gpus)} GPUs",
        why="GPUs without peer-to-peer exchange data through shared memory; without it NCCL takes "
        "the network, inside one VM.",
        cure=f"{unset(_NAME, value)}. If it was set because /dev/shm was too small, make that "
        "larger: `--shm-size=8g`.",
        source=f"NVIDIA, NCCL User Guide, {_NAME}",
    )
