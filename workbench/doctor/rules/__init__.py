"""The rules, each in a file of its own: a function from a snapshot to findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from workbench.doctor.finding import Finding
from workbench.doctor.rules.driver_not_loaded import driver_not_loaded
from workbench.doctor.rules.memlock_limit import memlock_limit
from workbench.doctor.rules.probe_failed import probe_failed
from workbench.doctor.rules.rdma_port_not_active import rdma_port_not_active
from workbench.doctor.rules.rdma_port_slow import rdma_port_slow
from workbench.doctor.rules.roce_mtu import roce_mtu
from workbench.doctor.rules.shm_size import shm_size
from workbench.doctor.rules.vgpu_without_p2p import vgpu_without_p2p
from workbench.resources import Snapshot

RULES: tuple[Callable[[Snapshot], Iterable[Finding]], ...] = (
    probe_failed,
    driver_not_loaded,
    vgpu_without_p2p,
    rdma_port_not_active,
    rdma_port_slow,
    roce_mtu,
    memlock_limit,
    shm_size,
)
"""All rules; a new one is a file here and a line in this list."""
