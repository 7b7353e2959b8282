"""A topology file on some VMs only, or another one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from workbench.doctor.across.odd import odd
from workbench.doctor.finding import Finding
from workbench.resources import Snapshot, Unknown
from workbench.resources.pcie.distances import of_unknown_kind
from workbench.resources.pcie.records import TOPOLOGY_FILE

_WORDS = {
    "none": "no topology file",
    "missing": "a setting that names a topology file which is not there",
    "broken": "a topology file that cannot be read",
    "refused": "a topology file that NCCL stops at",
}


def topology_files_unlike(snapshots: Mapping[str, Snapshot]) -> Iterator[Finding]:
    """Find VMs that NCCL is told the topology of beside VMs that it is not, or told otherwise."""
    for found in odd(snapshots, _file):
        yield Finding(
            rule="topology_files_unlike",
            severity="warning",
            subject=found.vms,
            evidence=found.evidence,
            why="NCCL searches rings and trees over what every rank reports: where one VM shows "
            "another machine than the rest, all take the slower common denominator, or "
            "GPUDirect RDMA is used on one side only.",
            cure="The same file on every VM of a kind, and the same `NCCL_TOPO_FILE=FILE` in the "
            "environment or in /etc/nccl.conf.",
            source="NVIDIA, NCCL User Guide, Environment Variables, NCCL_TOPO_FILE",
        )


def _file(snapshot: Snapshot) -> str | None:
    pcie = snapshot.pcie
    if isinstance(pcie, Unknown) or isinstance(pcie.topology_file_state, Unknown):
        return None
    status = pcie.topology_file_state.status
    if status in _WORDS:
        return _WORDS[status]
    tree = pcie.tree(TOPOLOGY_FILE)
    if tree is None:
        return None
    gpus, nics = (sum(one.kind == kind for one in tree.devices) for kind in ("gpu", "nic"))
    unclear = len(of_unknown_kind(tree.devices))
    more = f", and {unclear} devices that it does not say" if unclear else ""
    return f"a topology file of {gpus} GPUs and {nics} NICs{more}"
