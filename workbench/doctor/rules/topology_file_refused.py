"""A topology file that is well for any parser of XML but NCCL's own."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.resources import Snapshot, Unknown


def topology_file_refused(snapshot: Snapshot) -> Iterator[Finding]:
    """Find a topology file that begins with an XML declaration, or is laid out by tabs."""
    pcie = snapshot.pcie
    state = Unknown("") if isinstance(pcie, Unknown) else pcie.topology_file_state
    if isinstance(pcie, Unknown) or isinstance(state, Unknown) or state.status != "refused":
        return
    yield Finding(
        rule="topology_file_refused",
        severity="error",
        subject="this VM",
        evidence=f"{pcie.topology_file}: {state.why}",
        why="NCCL has a small parser of its own, which stops there: every rank ends with "
        'ncclInternalError ("XML Parse" with NCCL_DEBUG=WARN).',
        cure="Take the declaration out, and put blanks for tabs; or write the file anew: "
        f"`workbench resources --topology {pcie.topology_file} --write-topology FILE`.",
        source="NVIDIA, NCCL, src/graph/xml.cc, xmlGetNode and xmlGetToken",
    )
