"""Rules about NCCL's topology file: missing, unreadable, or in contradiction to the kernel."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.facts import first_of, pci_name
from workbench.doctor.rule import Case, rule
from workbench.resources import Snapshot, Unknown
from workbench.resources.pcie.distances import endpoints, switches_above
from workbench.resources.pcie.records import (
    SYSFS,
    TOPOLOGY_FILE,
    DistanceDifference,
    Pcie,
    TopologyFileState,
)

_UNDER_SWITCH = ("PIX", "PXB")
_FILE_SETTING_SOURCE = "NVIDIA, NCCL User Guide, Environment Variables, NCCL_TOPO_FILE"


def _file_state(snapshot: Snapshot) -> TopologyFileState | None:
    """Return the state of the topology file that NCCL reads; None if it is unknown."""
    state = snapshot.known_pcie.topology_file_state
    return None if isinstance(state, Unknown) else state


@rule(
    "warning",
    why="NCCL believes the tree that the VM shows: it may choose slow paths between GPUs, and not "
    "use GPUDirect RDMA although GPU and port share a switch.",
    fix="Get the topology file for this kind of VM from the cloud's vendor or the host's "
    "administrator, and name it in every VM: `NCCL_TOPO_FILE=FILE`, in the environment or in "
    "/etc/nccl.conf.",
    source="NVIDIA, NCCL User Guide, Troubleshooting, Topology detection",
)
def topology_file_missing(snapshot: Snapshot) -> Iterator[Case]:
    """Find a VM with several GPUs, or a GPU and RDMA, that shows no PCIe switch at all."""
    hypervisor = snapshot.host.hypervisor
    state = _file_state(snapshot)
    if isinstance(hypervisor, Unknown) or hypervisor == "none":
        return
    gpus, ports = _devices_without_switch(snapshot.known_pcie)
    if state is not None and state.status == "none" and gpus and gpus + ports >= 2:
        yield Case(
            f"{hypervisor} shows GPUs ({gpus}) and RDMA devices ({ports}) without a PCIe switch "
            "above any of them, and NCCL reads no topology file",
            severity="warning" if ports else "info",
        )


def _devices_without_switch(pcie: Pcie) -> tuple[int, int]:
    """Count GPUs and RDMA devices; both numbers are 0 if any of them is under a switch."""
    tree = pcie.tree(SYSFS)
    if tree is None:
        return 0, 0
    gpus, nics = endpoints(tree)
    ports = [nic for nic in nics if nic.has_rdma]
    if any(switches_above(tree, device.address) for device in [*gpus, *ports]):
        return 0, 0
    return len(gpus), len(ports)


@rule(
    "warning",
    why="NCCL then believes the tree that the VM shows, and may not use GPUDirect RDMA.",
    fix="Get the file again from the cloud's vendor or the host's administrator, and name it: "
    "`NCCL_TOPO_FILE=FILE`, in the environment or in /etc/nccl.conf, the same in every VM. Or "
    "remove the setting.",
    source=_FILE_SETTING_SOURCE,
)
def topology_file_unreadable(snapshot: Snapshot) -> Iterator[Case]:
    """Find a topology file that NCCL tries to read, but that cannot be read here."""
    state = _file_state(snapshot)
    if state is not None and state.status == "missing":
        yield Case(state.why)
    if state is not None and state.status == "broken":
        cost = "NCCL may refuse to start because of such a file."
        yield Case(state.why, severity="error", why=cost)


@rule(
    "error",
    why="NCCL has a small XML parser of its own, and stops there: every rank fails with "
    "ncclInternalError (NCCL_DEBUG=WARN shows the line).",
    source="NVIDIA, NCCL, src/graph/xml.cc, xmlGetNode, xmlGetToken and ncclTopoGetXmlFromSys",
)
def topology_file_refused(snapshot: Snapshot) -> Iterator[Case]:
    """Find a file with an XML declaration or tabs, or without an attribute that NCCL needs."""
    state = _file_state(snapshot)
    if state is None or state.status != "refused":
        return
    file = snapshot.known_pcie.topology_file
    yield Case(
        f"{file}: {state.why}",
        fix="Correct that line (no declaration, blanks instead of tabs), or write the file again: "
        f"`workbench resources --topology {file} --write-topology FILE`.",
    )


@rule(
    "warning",
    why="NCCL believes the file: it chooses paths that are slower than it expects, or does not "
    "use a short one. The file may be for another kind of VM.",
    source=_FILE_SETTING_SOURCE,
)
def topology_sources_differ(snapshot: Snapshot) -> Iterator[Case]:
    """Find distances that differ between file and kernel, if the kernel's are reliable.

    They are reliable on bare metal, and in a VM that shows a switch above both devices. They are
    not in a VM that shows no switch; such a VM has a topology file for this reason.
    """
    pcie = snapshot.known_pcie
    is_bare_metal = snapshot.host.hypervisor == "none"
    contradicting = []
    for pair in pcie.differences():
        distances = _distances(pair)
        if len(set(distances.values())) < 2:
            continue
        if is_bare_metal or distances[SYSFS] in _UNDER_SWITCH:
            names = f"{pci_name(snapshot, pair.a)} and {pci_name(snapshot, pair.b)}"
            contradicting.append(f"{names} ({distances[TOPOLOGY_FILE]}, not {distances[SYSFS]})")
    if contradicting:
        yield Case(
            f"the topology file contradicts the PCIe tree of the kernel: {first_of(contradicting)}",
            fix=f"Compare {pcie.topology_file} with `lspci -tv`; get the file for this "
            "kind of VM, or unset NCCL_TOPO_FILE.",
        )


def _distances(pair: DistanceDifference) -> dict[str, str]:
    """Return the known distances by source, with the names of NCCL, which has no NODE."""
    by_source = {entry.source: entry.distance for entry in pair.distances}
    distances = {source: by_source.get(source) for source in (TOPOLOGY_FILE, SYSFS)}
    return {
        source: "PHB" if distance == "NODE" else distance
        for source, distance in distances.items()
        if isinstance(distance, str)
    }
