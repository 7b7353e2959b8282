"""Rules about PCIe and NUMA: the paths between GPUs, RDMA ports and CPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from workbench.doctor.facts import first_of, gpu_names, gpu_names_at, gpus_in_sysfs, pci_name
from workbench.doctor.finding import Severity
from workbench.doctor.rule import Case, rule
from workbench.resources import Snapshot, Unknown
from workbench.resources.gpus.vgpu import VgpuProfile
from workbench.resources.pcie.records import SYSFS, GpuDirect, Pcie

_LEVEL_SETTING = "NCCL_NET_GDR_LEVEL"
_DISTANCES = ("PIX", "PXB", "PHB", "SYS")
_DMA_BUF_LINUX = (
    5,
    12,
)  # the first Linux with dma-buf for RDMA, unless a distribution backports it


@rule(
    "warning",
    why="NCCL uses no GPUDirect RDMA here: gradients to other VMs are copied through host memory.",
    source=f"NVIDIA, NCCL User Guide, Environment Variables, {_LEVEL_SETTING}",
)
def gpu_nic_too_far(snapshot: Snapshot) -> Iterator[Case]:
    """Find GPUs that are too far from every RDMA port of this VM, by NCCL's rule.

    One near port is enough for a GPU: on a board of eight GPUs, most ports are far from a GPU.
    """
    rdma = snapshot.known_pcie.rdma_addresses
    by_gpu: dict[str, list[GpuDirect]] = {}
    for pair in snapshot.known_pcie.gpudirect:
        if pair.nic in rdma:
            by_gpu.setdefault(pair.gpu, []).append(pair)
    gpus_by_reason: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for gpu, pairs in by_gpu.items():
        if all(pair.possible is False for pair in pairs):
            reason = min((pair.why.split(";")[0] for pair in pairs), key=_distance_rank)
            nearest = (pair.nic for pair in pairs if pair.why.startswith(reason))
            names = tuple(pci_name(snapshot, nic) for nic in nearest)
            gpus_by_reason.setdefault((reason, names), []).append(gpu)
    for (reason, names), gpus in gpus_by_reason.items():
        yield Case(
            f"no RDMA port is near enough; the nearest: {first_of(names)}, where {reason}",
            gpu_names_at(snapshot, gpus),
            fix=_distance_fix(reason),
        )


def _distance_rank(reason: str) -> int:
    """Rank a reason of `GpuDirect`, which begins with the distance."""
    word = reason.split()[0]
    return _DISTANCES.index(word) if word in _DISTANCES else len(_DISTANCES)


def _distance_fix(reason: str) -> str:
    level = reason.split()[0]
    if _LEVEL_SETTING in reason:
        return f"Unset {_LEVEL_SETTING} in the environment and in nccl.conf, or set it to {level}."
    return (
        "If GPU and port are under one switch of the VM's host: `NCCL_TOPO_FILE=FILE` with the "
        f"real PCIe tree. Otherwise `{_LEVEL_SETTING}={level}` makes NCCL use GPUDirect RDMA "
        "nevertheless: measure with and without it. Or ask for a VM whose ports are near its GPUs."
    )


@rule(
    "warning",
    why="NCCL then uses no GPUDirect RDMA: data for other VMs is copied through host memory, "
    "which costs CPU time and bandwidth.",
    fix="`sudo modprobe nvidia_peermem` (after NVIDIA's network driver, DOCA-OFED; "
    "`/etc/modules-load.d/nvidia-peermem.conf` makes it permanent), or NVIDIA's open kernel "
    "modules on Linux 5.12 or newer, which use dma-buf.",
    source="NVIDIA, GPU Operator documentation, GPUDirect RDMA; NVIDIA driver README, "
    "GPUDirect RDMA Peer Memory Client",
)
def peer_memory_missing(snapshot: Snapshot) -> Iterator[Case]:
    """Find GPUs near an NVIDIA NIC on a VM with neither nvidia_peermem nor dma-buf."""
    gpus = _gpus_near_nvidia_ports(snapshot)
    reason = _no_dma_buf(snapshot)
    if gpus and reason is not None:
        severity, words = reason
        yield Case(
            f"an RDMA port is near enough, but nvidia_peermem is not loaded, and {words}",
            gpu_names_at(snapshot, gpus),
            severity=severity,
        )


def _gpus_near_nvidia_ports(snapshot: Snapshot) -> list[str]:
    """Return the addresses of GPUs that may use GPUDirect RDMA with a port of an NVIDIA NIC."""
    pcie = snapshot.known_pcie
    nvidias = {nic.pci_address for nic in snapshot.nics if str(nic.driver).startswith("mlx")}
    ports = pcie.rdma_addresses & nvidias
    allowed = {
        gpu.pci_address
        for gpu in snapshot.gpus
        if gpu.form in ("whole", "passthrough")
        or (isinstance(gpu.vgpu, VgpuProfile) and gpu.vgpu.gpudirect is True)
    }
    near = [pair.gpu for pair in pcie.gpudirect if pair.possible is True and pair.nic in ports]
    return [gpu for gpu in dict.fromkeys(near) if gpu in allowed]


def _no_dma_buf(snapshot: Snapshot) -> tuple[Severity, str] | None:
    """Return the severity, and why a NIC cannot access GPU memory; None if it can, or may."""
    host = snapshot.host
    if host.peer_memory_modules != () or isinstance(host.nvidia_module, Unknown):
        return None
    if host.nvidia_module == "proprietary":
        return "warning", "the proprietary kernel module is, which has no dma-buf"
    release = re.match(r"(\d+)\.(\d+)", str(host.kernel))
    if release is None or (int(release[1]), int(release[2])) >= _DMA_BUF_LINUX:
        return None
    return "info", f"Linux {host.kernel} may have no dma-buf for RDMA (5.12 has)"


@rule(
    "warning",
    why="GPUDirect RDMA then goes up to the CPU's root complex and back, which is much slower and "
    "may hang.",
    source="NVIDIA, NCCL User Guide, Troubleshooting, PCI Access Control Services",
)
def acs_redirect(snapshot: Snapshot) -> Iterator[Case]:
    """Find ACS redirection between a GPU and an RDMA port under one switch, on bare metal.

    Below a VM, the host needs ACS; the VM's NICs then need ATS, see `ats_off`.
    """
    pcie = snapshot.known_pcie
    if snapshot.host.hypervisor != "none":
        return
    bridges: dict[str, None] = {}
    pairs = []
    for pair in pcie.gpudirect:
        between = _redirecting_bridges(pcie, pair) if pair.possible is True else []
        if between:
            bridges.update(dict.fromkeys(between))
            pairs.append(f"{pci_name(snapshot, pair.gpu)} and {pci_name(snapshot, pair.nic)}")
    if pairs:
        commands = (f"`sudo setpci -s {bridge} ECAP_ACS+0x6.w=0000`" for bridge in bridges)
        yield Case(
            f"ACS at {', '.join(bridges)} redirects traffic between {first_of(pairs)}",
            fix="Switch IO virtualisation (VT-d, AMD-Vi) off in the BIOS if no VM needs it, or "
            f"after every start: {'; '.join(commands)}.",
        )


def _redirecting_bridges(pcie: Pcie, pair: GpuDirect) -> list[str]:
    """Return the redirecting bridges between two devices that share a switch."""
    tree = pcie.tree(SYSFS)
    distances = [
        distance.distance
        for distance in pcie.between(pair.gpu, pair.nic)
        if distance.source == SYSFS
    ]
    if tree is None or distances not in (["PIX"], ["PXB"]):
        return []
    between = set(tree.above(pair.gpu)) ^ set(tree.above(pair.nic))
    return [
        device.address
        for device in tree.devices
        if device.address in between and device.acs == "redirect"
    ]


@rule(
    "warning",
    why="In a VM, traffic between GPU and NIC goes up to the CPU's IOMMU unless the NIC "
    "translates addresses itself: GPUDirect RDMA stays below its full speed.",
    fix="On the host: `mlxconfig -d DEVICE set ATS_ENABLED=true` for each NIC, restart the "
    "host (not the VM alone), and check for `Enable+` in `lspci -vvv | grep ATSCtl`.",
    source="NVIDIA, NCCL User Guide, Troubleshooting; NVIDIA AI Enterprise, Optimizing VM "
    "Configuration for AI Inference, ATS and ACS configuration",
)
def ats_off(snapshot: Snapshot) -> Iterator[Case]:
    """Find RDMA devices of a VM that may use GPUDirect RDMA, and have ATS switched off."""
    pcie = snapshot.known_pcie
    hypervisor = snapshot.host.hypervisor
    if isinstance(hypervisor, Unknown) or hypervisor == "none":
        return
    used = {pair.nic for pair in pcie.gpudirect if pair.possible is not False}
    used &= pcie.rdma_addresses
    off = [
        device.address for device in pcie.devices if device.address in used and device.ats == "off"
    ]
    if off:
        names = ", ".join(pci_name(snapshot, address) for address in off)
        yield Case(f"ATS is off at {', '.join(off)}", names)


@rule(
    "warning",
    why="Every batch to the GPU, and NCCL's traffic through host memory, crosses the link between "
    "the CPUs.",
    source="NVIDIA, NCCL User Guide, NCCL_IGNORE_CPU_AFFINITY; PyTorch, Performance Tuning Guide",
)
def gpu_on_other_numa_node(snapshot: Snapshot) -> Iterator[Case]:
    """Find GPUs on a NUMA node without any CPU in the affinity mask of this process."""
    usable = snapshot.host.usable_numa_nodes
    if isinstance(usable, Unknown) or not usable:
        return
    gpus_by_node: dict[int, set[int]] = {}
    for gpu, device in gpus_in_sysfs(snapshot):
        node = device.numa_node
        if isinstance(node, int) and node not in usable:
            gpus_by_node.setdefault(node, set()).add(gpu.index)
    for node, indices in gpus_by_node.items():
        yield Case(
            f"on NUMA node {node}; this process may run on CPUs of node "
            f"{', '.join(map(str, usable))} only",
            gpu_names(indices),
            fix=f"Start the rank with `numactl --cpunodebind={node} --membind={node}`; give a "
            "container those CPUs (`--cpuset-cpus`; in Kubernetes the Topology Manager's policy "
            "`single-numa-node`). NCCL_IGNORE_CPU_AFFINITY=1 lets NCCL's own threads follow the "
            "GPU if CPUs are bound by affinity alone.",
        )


@rule(
    "info",
    why="NCCL and this workbench cannot see which GPUs, NICs and CPUs are near each other: they "
    "treat distances as equal even if they are not.",
    fix="Ask for NUMA nodes of PCI devices in the VM (QEMU: `-device pxb-pcie,numa_node=N` above "
    "them), or for the host's topology file, and set NCCL_TOPO_FILE to it.",
    source="QEMU, docs/pci_expander_bridge.txt; NVIDIA, NCCL User Guide, NCCL_TOPO_FILE",
)
def numa_unknown_in_vm(snapshot: Snapshot) -> Iterator[Case]:
    """Find VMs with several GPUs of unknown NUMA node, without a topology file that shows it."""
    hypervisor = snapshot.host.hypervisor
    pcie = snapshot.known_pcie
    if isinstance(hypervisor, Unknown) or hypervisor == "none":
        return
    gpus = [
        str(gpu.index)
        for gpu, device in gpus_in_sysfs(snapshot)
        if isinstance(device.numa_node, Unknown)
    ]
    if len(gpus) > 1 and not isinstance(pcie.topology_file, str):
        yield Case(
            f"{hypervisor} gives no NUMA node for {len(gpus)} GPUs ({', '.join(gpus)}); "
            f"NCCL's topology file: {pcie.topology_file}"
        )
