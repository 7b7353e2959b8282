"""Rules over several VMs at once: a function from snapshots by name to findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from workbench.doctor.across.drivers_unlike import drivers_unlike
from workbench.doctor.across.ecc_unlike import ecc_unlike
from workbench.doctor.across.gpudirect_unlike import gpudirect_unlike
from workbench.doctor.across.gpus_unlike import gpus_unlike
from workbench.doctor.across.licences_unlike import licences_unlike
from workbench.doctor.across.machines_unlike import machines_unlike
from workbench.doctor.across.nccl_settings_unlike import nccl_settings_unlike
from workbench.doctor.across.nic_sets_unlike import nic_sets_unlike
from workbench.doctor.across.nvlinks_unlike import nvlinks_unlike
from workbench.doctor.across.rdma_unlike import rdma_unlike
from workbench.doctor.across.same_gpu_twice import same_gpu_twice
from workbench.doctor.across.topology_files_unlike import topology_files_unlike
from workbench.doctor.finding import Finding
from workbench.resources import Snapshot

ACROSS: tuple[Callable[[Mapping[str, Snapshot]], Iterable[Finding]], ...] = (
    same_gpu_twice,
    gpus_unlike,
    drivers_unlike,
    licences_unlike,
    nvlinks_unlike,
    ecc_unlike,
    rdma_unlike,
    nic_sets_unlike,
    gpudirect_unlike,
    topology_files_unlike,
    nccl_settings_unlike,
    machines_unlike,
)
"""All of them; a new one is a file here and a line in this list."""
