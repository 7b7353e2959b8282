"""Several GPUs in a VM, and no word of which CPUs they are near."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.doctor.reading import gpus_in_sysfs
from workbench.resources import Snapshot, Unknown


def numa_unknown_in_vm(snapshot: Snapshot) -> Iterator[Finding]:
    """Find VMs whose GPUs have no NUMA node, and no topology file that tells it."""
    hypervisor, pcie = snapshot.host.hypervisor, snapshot.pcie
    if isinstance(hypervisor, Unknown) or hypervisor == "none" or isinstance(pcie, Unknown):
        return
    lost = [gpu for gpu, device in gpus_in_sysfs(snapshot) if isinstance(device.numa_node, Unknown)]
    if len(lost) < 2 or isinstance(pcie.topology_file, str):
        return
    indices = ", ".join(str(gpu.index) for gpu in lost)
    yield Finding(
        rule="numa_unknown_in_vm",
        severity="info",
        subject="this VM",
        evidence=f"{hypervisor} gives no NUMA node for {len(lost)} GPUs ({indices}); "
        f"NCCL's topology file: {pcie.topology_file}",
        why="NCCL and this workbench cannot tell which GPUs, NICs and CPUs are near each other: "
        "distances are taken for equal where they are not.",
        cure="Ask for NUMA nodes of PCI devices in the VM (QEMU: `-device "
        "pxb-pcie,numa_node=N` above them), or for the host's topology file, and set "
        "NCCL_TOPO_FILE to it.",
        source="QEMU, docs/pci_expander_bridge.txt; NVIDIA, NCCL User Guide, NCCL_TOPO_FILE",
    )
