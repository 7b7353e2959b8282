"""Rules over what is used now: a function from a snapshot and a sample to findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from workbench.doctor.finding import Finding
from workbench.doctor.live.gpu_idle import gpu_idle
from workbench.doctor.live.rdma_errors import rdma_errors
from workbench.resources import Snapshot
from workbench.resources.usage import Sample

LIVE: tuple[Callable[[Snapshot, Sample], Iterable[Finding]], ...] = (gpu_idle, rdma_errors)
"""All of them; a new one is a file here and a name in this list."""
