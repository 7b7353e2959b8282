"""All rules, in the order of a report, and the functions that run them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from workbench.doctor import (
    gpus,
    host,
    nccl_settings,
    nvlinks,
    pcie,
    pvrdma,
    rdma,
    topology_file,
    vgpus,
)
from workbench.doctor.finding import SEVERITIES, Finding
from workbench.doctor.mismatches import MISMATCHES
from workbench.doctor.rule import Rule
from workbench.errors import UsageError
from workbench.resources import Snapshot
from workbench.resources.usage import Sample

T = TypeVar("T")

RULES: tuple[Rule[Snapshot], ...] = (
    host.probe_failed,
    gpus.driver_not_loaded,
    gpus.gpu_lost,
    vgpus.vgpu_without_p2p,
    vgpus.mig_without_devices,
    vgpus.mig_without_p2p,
    vgpus.unified_memory_on,
    pcie.gpu_nic_too_far,
    pcie.peer_memory_missing,
    topology_file.topology_file_missing,
    topology_file.topology_file_unreadable,
    topology_file.topology_file_refused,
    topology_file.topology_sources_differ,
    pcie.acs_redirect,
    pcie.ats_off,
    vgpus.vgpu_unlicensed,
    nvlinks.nvlink_down,
    nvlinks.nvlink_fewer_than_model,
    nvlinks.bridged_pairs,
    nvlinks.fabric_not_ready,
    gpus.ecc_errors,
    gpus.throttled,
    gpus.pcie_link_reduced,
    gpus.persistence_mode_off,
    gpus.compute_mode,
    nvlinks.p2p_refused,
    rdma.rdma_port_not_active,
    rdma.rdma_port_slow,
    rdma.roce_mtu,
    host.memlock_limit,
    host.shm_size,
    host.open_files_limit,
    host.memory_limit,
    host.clock_source,
    host.vsphere_limit,
    rdma.rdma_without_device_nodes,
    rdma.roce_without_v2_gid,
    rdma.roce_v1_gid,
    pvrdma.pvrdma_without_device,
    pvrdma.pvrdma_without_ip,
    pvrdma.pvrdma,
    nccl_settings.rdma_unused,
    nccl_settings.nccl_p2p_disabled,
    nccl_settings.nccl_shm_disabled,
    pcie.gpu_on_other_numa_node,
    pcie.numa_unknown_in_vm,
)
"""Rules over the snapshot of one VM."""

LIMITS: tuple[Rule[Snapshot], ...] = (host.shm_size, host.memlock_limit, host.open_files_limit)
"""Those about limits that ranks run into, which are also checked before a start."""

LIVE: tuple[Rule[Sample], ...] = (gpus.gpu_idle, rdma.rdma_errors)
"""Rules over what a VM uses at this moment."""

ACROSS = MISMATCHES
"""Rules over several VMs."""


def diagnose(snapshot: Snapshot, sample: Sample | None = None) -> list[Finding]:
    """Return all findings on one VM, the most severe first.

    Parameters
    ----------
    snapshot
        Of this VM or of another one (`Snapshot.load`).
    sample
        What that VM uses at this moment, from a sampler that has run for a while. With it
        the findings include GPUs that are allocated but idle, and RDMA ports that lose packets.

    Returns
    -------
    list of Finding
        Empty if no rule finds anything wrong. An unknown value is not treated as wrong.

    Raises
    ------
    UsageError
        They are not a snapshot and a sample.
    """
    _check(snapshot, Snapshot, "a snapshot", "wb.take_snapshot() or wb.Snapshot.load(path)")
    if sample is not None:
        _check(sample, Sample, "a sample", "one that cluster.samples() returns")
    live = [] if sample is None else _findings(LIVE, sample)
    return worst_first([*_findings(RULES, snapshot), *live])


def diagnose_limits(snapshot: Snapshot) -> list[Finding]:
    """Return the findings of `diagnose` about limits that ranks run into, the most severe first."""
    return worst_first(_findings(LIMITS, snapshot))


def diagnose_all(snapshots: Mapping[str, Snapshot]) -> list[Finding]:
    """Compare VMs that train together, and return how they differ, the most severe first.

    Parameters
    ----------
    snapshots
        By the VMs' names, which findings contain.

    Returns
    -------
    list of Finding
        Each names the VMs that differ from most. Use `diagnose` for problems within one VM.
        A value that is unknown on a VM is left out of the comparison.

    Raises
    ------
    UsageError
        They are not snapshots by name.
    """
    if not isinstance(snapshots, Mapping):
        raise UsageError(
            f"diagnose_all: snapshots are of type {type(snapshots).__name__}, without names. Give "
            "a dict of snapshots by name, such as cluster.snapshot()."
        )
    for one in snapshots.values():
        _check(one, Snapshot, "a snapshot", "wb.take_snapshot() or wb.Snapshot.load(path)")
    return worst_first(_findings(ACROSS, snapshots))


def rule_count(rules: Iterable[Rule[T]]) -> int:
    """Count rules by name: a comparison of several values is one rule."""
    return len({rule.name for rule in rules})


def _check(given: object, kind: type, name: str, example: str) -> None:
    if not isinstance(given, kind):
        raise UsageError(f"a {type(given).__name__}: not {name}. Give {example}.")


def _findings(rules: Iterable[Rule[T]], evidence: T) -> list[Finding]:
    return [finding for rule in rules for finding in rule(evidence)]


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings by severity; those of one severity keep their order."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
