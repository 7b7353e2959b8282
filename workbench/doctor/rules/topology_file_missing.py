"""A VM that hides how far its devices are apart, and no file that tells NCCL."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.doctor.pci_names import has_rdma
from workbench.resources import Snapshot, Unknown
from workbench.resources.pcie.distances import endpoints, switches_above
from workbench.resources.pcie.records import SYSFS, Pcie


def topology_file_missing(snapshot: Snapshot) -> Iterator[Finding]:
    """Find a VM with several GPUs, or a GPU and RDMA, that shows no PCIe switch at all."""
    hypervisor, pcie = snapshot.host.hypervisor, snapshot.pcie
    if isinstance(hypervisor, Unknown) or hypervisor == "none" or isinstance(pcie, Unknown):
        return
    gpus, ports = _flat(pcie)
    if not _has_none(pcie) or not gpus or gpus + ports < 2:
        return
    yield Finding(
        rule="topology_file_missing",
        severity="warning" if ports else "info",
        subject="this VM",
        evidence=f"{hypervisor} shows GPUs ({gpus}) and RDMA devices ({ports}) without a PCIe "
        "switch above any of them, and NCCL reads no topology file",
        why="NCCL takes the tree that the VM shows for the true one: it may choose slow ways "
        "between GPUs, and leave GPUDirect RDMA off though GPU and port share a switch.",
        cure="Get the topology file of this kind of VM from the cloud's vendor or the host's "
        "administrator, and name it in every VM: `NCCL_TOPO_FILE=FILE`, in the environment or in "
        "/etc/nccl.conf.",
        source="NVIDIA, NCCL User Guide, Troubleshooting, Topology detection",
    )


def _has_none(pcie: Pcie) -> bool:
    state = pcie.topology_file_state
    return not isinstance(state, Unknown) and state.status == "none"


def _flat(pcie: Pcie) -> tuple[int, int]:
    """Count GPUs and RDMA devices; nothing where one of them is under a switch."""
    tree = pcie.tree(SYSFS)
    if tree is None:
        return 0, 0
    gpus, nics = endpoints(tree)
    ports = [nic for nic in nics if has_rdma(nic)]
    if any(switches_above(tree, one.address) for one in [*gpus, *ports]):
        return 0, 0
    return len(gpus), len(ports)
