"""NCCL is pointed at a topology file that is not there, or is none."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.resources import Snapshot, Unknown


def topology_file_unreadable(snapshot: Snapshot) -> Iterator[Finding]:
    """Find a topology file that NCCL tries to read and that cannot be read here."""
    state = Unknown("") if isinstance(snapshot.pcie, Unknown) else snapshot.pcie.topology_file_state
    if isinstance(state, Unknown) or state.status not in ("missing", "broken"):
        return
    broken = state.status == "broken"
    yield Finding(
        rule="topology_file_unreadable",
        severity="error" if broken else "warning",
        subject="this VM",
        evidence=state.why,
        why="NCCL may refuse to start over such a file."
        if broken
        else "NCCL then takes the tree that the VM shows for the true one, and may leave "
        "GPUDirect RDMA off.",
        cure="Fetch the file again from the cloud's vendor or the host's administrator, and name "
        "it: `NCCL_TOPO_FILE=FILE`, in the environment or in /etc/nccl.conf, the same in every "
        "VM. Or take the setting away.",
        source="NVIDIA, NCCL User Guide, Environment Variables, NCCL_TOPO_FILE",
    )
