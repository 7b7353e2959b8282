"""The rules, each in a file of its own: a function from a snapshot to findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from workbench.doctor.finding import Finding
from workbench.doctor.rules.acs_redirect import acs_redirect
from workbench.doctor.rules.ats_off import ats_off
from workbench.doctor.rules.bridged_pairs import bridged_pairs
from workbench.doctor.rules.clock_source import clock_source
from workbench.doctor.rules.compute_mode import compute_mode
from workbench.doctor.rules.driver_not_loaded import driver_not_loaded
from workbench.doctor.rules.ecc_errors import ecc_errors
from workbench.doctor.rules.fabric_not_ready import fabric_not_ready
from workbench.doctor.rules.gpu_lost import gpu_lost
from workbench.doctor.rules.gpu_nic_too_far import gpu_nic_too_far
from workbench.doctor.rules.gpu_on_other_numa_node import gpu_on_other_numa_node
from workbench.doctor.rules.memlock_limit import memlock_limit
from workbench.doctor.rules.memory_limit import memory_limit
from workbench.doctor.rules.mig_without_devices import mig_without_devices
from workbench.doctor.rules.mig_without_p2p import mig_without_p2p
from workbench.doctor.rules.nccl_p2p_disabled import nccl_p2p_disabled
from workbench.doctor.rules.nccl_shm_disabled import nccl_shm_disabled
from workbench.doctor.rules.numa_unknown_in_vm import numa_unknown_in_vm
from workbench.doctor.rules.nvlink_down import nvlink_down
from workbench.doctor.rules.nvlink_fewer_than_model import nvlink_fewer_than_model
from workbench.doctor.rules.open_files_limit import open_files_limit
from workbench.doctor.rules.p2p_refused import p2p_refused
from workbench.doctor.rules.pcie_link_reduced import pcie_link_reduced
from workbench.doctor.rules.peer_memory_missing import peer_memory_missing
from workbench.doctor.rules.persistence_mode_off import persistence_mode_off
from workbench.doctor.rules.probe_failed import probe_failed
from workbench.doctor.rules.pvrdma import pvrdma
from workbench.doctor.rules.rdma_port_not_active import rdma_port_not_active
from workbench.doctor.rules.rdma_port_slow import rdma_port_slow
from workbench.doctor.rules.rdma_unused import rdma_unused
from workbench.doctor.rules.rdma_without_device_nodes import rdma_without_device_nodes
from workbench.doctor.rules.roce_mtu import roce_mtu
from workbench.doctor.rules.roce_v1_gid import roce_v1_gid
from workbench.doctor.rules.roce_without_v2_gid import roce_without_v2_gid
from workbench.doctor.rules.shm_size import shm_size
from workbench.doctor.rules.throttled import throttled
from workbench.doctor.rules.topology_file_missing import topology_file_missing
from workbench.doctor.rules.topology_file_refused import topology_file_refused
from workbench.doctor.rules.topology_file_unreadable import topology_file_unreadable
from workbench.doctor.rules.topology_sources_differ import topology_sources_differ
from workbench.doctor.rules.unified_memory_on import unified_memory_on
from workbench.doctor.rules.vgpu_unlicensed import vgpu_unlicensed
from workbench.doctor.rules.vgpu_without_p2p import vgpu_without_p2p
from workbench.resources import Snapshot

RULES: tuple[Callable[[Snapshot], Iterable[Finding]], ...] = (
    probe_failed,
    driver_not_loaded,
    gpu_lost,
    vgpu_without_p2p,
    mig_without_devices,
    mig_without_p2p,
    unified_memory_on,
    gpu_nic_too_far,
    peer_memory_missing,
    topology_file_missing,
    topology_file_unreadable,
    topology_file_refused,
    topology_sources_differ,
    acs_redirect,
    ats_off,
    vgpu_unlicensed,
    nvlink_down,
    nvlink_fewer_than_model,
    bridged_pairs,
    fabric_not_ready,
    ecc_errors,
    throttled,
    pcie_link_reduced,
    persistence_mode_off,
    compute_mode,
    p2p_refused,
    rdma_port_not_active,
    rdma_port_slow,
    roce_mtu,
    memlock_limit,
    shm_size,
    open_files_limit,
    memory_limit,
    clock_source,
    rdma_without_device_nodes,
    roce_without_v2_gid,
    roce_v1_gid,
    pvrdma,
    rdma_unused,
    nccl_p2p_disabled,
    nccl_shm_disabled,
    gpu_on_other_numa_node,
    numa_unknown_in_vm,
)
"""All rules; a new one is a file here and a line in this list."""

LIMITS = (shm_size, memlock_limit, open_files_limit)
"""Those about limits of the VM that ranks run into: also checked before a start."""
