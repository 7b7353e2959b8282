"""All rules, in the order of a report, and the functions that run them."""

from __future__ import annotations

import logging
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

_log = logging.getLogger(__name__)

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
"""Rules about limits that ranks run into. They are also checked before a cluster starts."""

LIVE: tuple[Rule[Sample], ...] = (gpus.gpu_idle, rdma.rdma_errors)
"""Rules over the current use of a VM."""

ACROSS = MISMATCHES
"""Rules over several VMs."""


def diagnose(snapshot: Snapshot, sample: Sample | None = None) -> list[Finding]:
    """Return all findings on one VM, the most severe first.

    Parameters
    ----------
    snapshot
        The snapshot of this VM, or of another VM (`Snapshot.load`).
    sample
        The current use of that VM, from a sampler that has run for a while. With a sample, the
        findings include GPUs that are allocated but idle, and RDMA ports that lose packets.

    Returns
    -------
    list of Finding
        Empty if no rule finds anything wrong. An unknown value is not treated as wrong.

    Raises
    ------
    UsageError
        The arguments are not a snapshot and a sample.
    """
    _check(snapshot, Snapshot, "a snapshot", "wb.take_snapshot() or wb.Snapshot.load(path)")
    if sample is not None:
        _check(sample, Sample, "a sample", "one that cluster.samples() returns")
    live = [] if sample is None else _findings(LIVE, sample)
    findings = worst_first([*_findings(RULES, snapshot), *live])
    _log.debug("%d rules returned %d findings on a VM", rule_count(RULES), len(findings))
    return findings


def diagnose_limits(snapshot: Snapshot) -> list[Finding]:
    """Return the findings of `diagnose` about limits that ranks run into, the most severe first."""
    return worst_first(_findings(LIMITS, snapshot))


def diagnose_all(snapshots: Mapping[str, Snapshot]) -> list[Finding]:
    """Compare VMs that train together, and return how they differ, the most severe first.

    Parameters
    ----------
    snapshots
        The snapshots by name of their VM. Findings contain these names.

    Returns
    -------
    list of Finding
        Each finding names the VMs that differ from most VMs. Use `diagnose` for problems within
        one VM. A value that is unknown on a VM is left out of the comparison.

    Raises
    ------
    UsageError
        The argument is not a dict of snapshots by name.
    """
    if not isinstance(snapshots, Mapping):
        raise UsageError(
            f"diagnose_all: snapshots are of type {type(snapshots).__name__}, without names. Give "
            "a dict of snapshots by name, such as cluster.snapshot()."
        )
    for snapshot in snapshots.values():
        _check(snapshot, Snapshot, "a snapshot", "wb.take_snapshot() or wb.Snapshot.load(path)")
    findings = worst_first(_findings(ACROSS, snapshots))
    _log.debug("compared %d VMs: %d differences", len(snapshots), len(findings))
    return findings


def rule_count(rules: Iterable[Rule[T]]) -> int:
    """Count rules by name. A comparison of several values counts as one rule."""
    return len({rule.name for rule in rules})


def _check(value: object, kind: type, name: str, example: str) -> None:
    if not isinstance(value, kind):
        raise UsageError(f"a {type(value).__name__}: not {name}. Give {example}.")


def _findings(rules: Iterable[Rule[T]], evidence: T) -> list[Finding]:
    return [finding for rule in rules for finding in rule(evidence)]


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings by severity; findings of the same severity keep their order."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
