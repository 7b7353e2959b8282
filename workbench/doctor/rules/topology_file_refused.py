"""A topology file that other parsers of XML accept, and NCCL does not."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.resources import Snapshot, Unknown


def topology_file_refused(snapshot: Snapshot) -> Iterator[Finding]:
    """Find a file with an XML declaration or tabs, or without an attribute that NCCL needs."""
    pcie = snapshot.pcie
    state = Unknown("") if isinstance(pcie, Unknown) else pcie.topology_file_state
    if isinstance(pcie, Unknown) or isinstance(state, Unknown) or state.status != "refused":
        return
    yield Finding(
        rule="topology_file_refused",
        severity="error",
        subject="this VM",
        evidence=f"{pcie.topology_file}: {state.why}",
        why="NCCL has a small parser of its own, and stops there: every rank ends with "
        "ncclInternalError (NCCL_DEBUG=WARN names the place).",
        cure="Correct that place (no declaration, blanks for tabs), or write the file again: "
        f"`workbench resources --topology {pcie.topology_file} --write-topology FILE`.",
        source="NVIDIA, NCCL, src/graph/xml.cc, xmlGetNode, xmlGetToken and ncclTopoGetXmlFromSys",
    )
