"""The host of a snapshot: its record, and the probe that fills it."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from workbench.resources.files import children, find_line, read_text
from workbench.resources.host.cgroup import Cgroups, find_cgroups
from workbench.resources.host.machine import find_container, find_hypervisor
from workbench.resources.nccl_settings import NcclSettings
from workbench.resources.numa import cores_of_nodes, node_count
from workbench.resources.unknown import EARLIER, Unknown, if_known

UNLIMITED = "unlimited"
"""Value of a limit that the kernel does not set. Such a limit is known, so it is not `Unknown`."""
_NVIDIA = "0x10de"
_DISPLAY_CLASS = "0x03"
_CAP_IPC_LOCK = 14  # linux/capability.h
_PEER_MEMORY = ("nvidia_peermem", "nv_peer_mem")
_CLOCK = "current_clocksource"
_SHM = "/dev/shm"  # noqa: S108  # only its size is read


@dataclass(frozen=True)
class HostInfo:
    """The VM (or the machine, on bare metal), and the limits of this process.

    Attributes
    ----------
    hostname
        Host name in the kernel.
    hypervisor
        ``"KVM"``, ``"VMware"``, ``"Hyper-V"``, ``"Xen"``, ...; ``"none"`` on bare metal.
    cpus
        CPUs that this process may use, by CPU affinity and cgroup quota.
    cpus_total
        CPUs of the VM.
    memory_bytes
        Memory of the VM.
    memory_limit_bytes
        The lowest cgroup limit above this process, or ``"unlimited"``.
    shm_bytes
        Size of ``/dev/shm``, through which DataLoader workers and NCCL share memory.
    memlock_bytes
        RLIMIT_MEMLOCK of this process, or ``"unlimited"`` (by that limit, or by the
        capability CAP_IPC_LOCK). RDMA needs locked memory.
    numa_nodes
        NUMA nodes that the guest sees.
    nvidia_pci_addresses
        PCI addresses of NVIDIA display devices, with or without a driver.
    kernel, os
        Kernel release, and the name of the distribution.
    open_files
        RLIMIT_NOFILE of this process (the soft limit), or ``"unlimited"``.
    container
        ``"docker"``, ``"podman"``, ``"kubernetes"``, ``"lxc"``, ``"apptainer"``, ... if
        this process runs in a container; ``"none"`` if nothing indicates it.
    rdma_device_nodes
        Names in ``/dev/infiniband`` that are visible to this process:
        ``("rdma_cm", "uverbs0")``. libibverbs opens a ``uverbs`` node for each device.
    clock_source
        The kernel's clock source: ``"tsc"``, ``"kvm-clock"``, ``"acpi_pm"``, ...
    usable_numa_nodes
        NUMA nodes with a CPU on which this process may run.
    nccl_settings
        NCCL's settings for this process, from its environment and ``nccl.conf``.
    nvidia_module
        Which of NVIDIA's kernel modules is loaded: ``"open"`` or ``"proprietary"``.
    peer_memory_modules
        Loaded modules that give NICs access to GPU memory (``"nvidia_peermem"``). The open
        module does not need any, as it uses dma-buf.
    pvrdma_module
        Whether the kernel module ``vmw_pvrdma`` is loaded.
    product
        Product name in DMI: ``"VMware20,1"``.
    """

    hostname: str | Unknown
    hypervisor: str | Unknown
    cpus: int | Unknown
    cpus_total: int | Unknown
    memory_bytes: int | Unknown
    memory_limit_bytes: int | str | Unknown
    shm_bytes: int | Unknown
    memlock_bytes: int | str | Unknown
    numa_nodes: int | Unknown
    nvidia_pci_addresses: tuple[str, ...] | Unknown
    kernel: str | Unknown
    os: str | Unknown
    open_files: int | str | Unknown
    container: str | Unknown
    rdma_device_nodes: tuple[str, ...] | Unknown
    clock_source: str | Unknown
    usable_numa_nodes: tuple[int, ...] | Unknown
    nccl_settings: Mapping[str, str] | Unknown
    nvidia_module: str | Unknown = EARLIER
    peer_memory_modules: tuple[str, ...] | Unknown = EARLIER
    pvrdma_module: bool | Unknown = EARLIER
    product: str | Unknown = EARLIER


def probe_host(sysfs: Path, procfs: Path, devfs: Path, nccl: NcclSettings) -> HostInfo:
    """Return the properties of the VM and the limits of this process."""
    cgroups = find_cgroups(sysfs, procfs)
    limit = cgroups.memory_limit_bytes()
    return HostInfo(
        hostname=read_text(procfs / "sys/kernel/hostname"),
        hypervisor=find_hypervisor(sysfs, procfs),
        cpus=usable_cpus(cgroups),
        cpus_total=_cpus_total(procfs),
        memory_bytes=meminfo_bytes(procfs, "MemTotal"),
        memory_limit_bytes=UNLIMITED if limit is None else limit,
        shm_bytes=_shm_bytes(),
        memlock_bytes=_memlock_bytes(procfs),
        numa_nodes=_numa_nodes(sysfs),
        nvidia_pci_addresses=_nvidia_pci_addresses(sysfs),
        kernel=read_text(procfs / "sys/kernel/osrelease"),
        os=_os_name(),
        open_files=_soft_limit(resource.RLIMIT_NOFILE),
        container=find_container(procfs),
        rdma_device_nodes=_rdma_device_nodes(devfs),
        clock_source=read_text(sysfs / "devices/system/clocksource/clocksource0" / _CLOCK),
        usable_numa_nodes=_usable_numa_nodes(sysfs),
        nccl_settings=nccl.all(),
        nvidia_module=_nvidia_module(procfs),
        peer_memory_modules=_peer_memory_modules(sysfs),
        pvrdma_module=_pvrdma_module(sysfs),
        product=read_text(sysfs / "class/dmi/id/product_name"),
    )


def unknown_host(reason: str) -> HostInfo:
    """Return a host with all fields `Unknown`, for one reason."""
    return HostInfo(**{field.name: Unknown(reason) for field in fields(HostInfo)})


def usable_cpus(cgroups: Cgroups) -> int:
    """Return the number of CPUs that this process may use, at least 1."""
    return max(1, math.floor(cpu_capacity(cgroups)))


def cpu_capacity(cgroups: Cgroups) -> float:
    """Return the CPU capacity of this process, by affinity and quota, as a number of CPUs."""
    affinity = len(os.sched_getaffinity(0))
    quota = cgroups.cpu_quota()
    return affinity if quota is None else min(affinity, quota)


def meminfo_bytes(procfs: Path, name: str) -> int | Unknown:
    """Return one value of ``/proc/meminfo``, in bytes."""
    return if_known(
        find_line(procfs / "meminfo", f"{name}:"), lambda kib: int(kib.split()[0]) * 1024
    )


def _cpus_total(procfs: Path) -> int | Unknown:
    text = read_text(procfs / "stat")
    if isinstance(text, Unknown):
        return text
    return sum(line[:3] == "cpu" and line[3:4].isdigit() for line in text.splitlines())


def _shm_bytes() -> int | Unknown:
    try:
        status = os.statvfs(_SHM)
    except OSError as error:
        return Unknown(f"{_SHM} cannot be read: {error.strerror}")
    return status.f_blocks * status.f_frsize


def _memlock_bytes(procfs: Path) -> int | str:
    if _may_lock_anything(procfs):
        return UNLIMITED
    return _soft_limit(resource.RLIMIT_MEMLOCK)


def _soft_limit(limit: int) -> int | str:
    soft, _ = resource.getrlimit(limit)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def _may_lock_anything(procfs: Path) -> bool:
    """Return whether this process has CAP_IPC_LOCK, which overrides RLIMIT_MEMLOCK."""
    mask = find_line(procfs / "self/status", "CapEff:")
    return isinstance(mask, str) and bool(int(mask, 16) >> _CAP_IPC_LOCK & 1)


def _numa_nodes(sysfs: Path) -> int | Unknown:
    folder = sysfs / "devices/system/node"
    return node_count(sysfs) or Unknown(f"the kernel lists no NUMA nodes under {folder}")


def _usable_numa_nodes(sysfs: Path) -> tuple[int, ...] | Unknown:
    cores = cores_of_nodes(sysfs)
    if not cores:
        return Unknown(f"no NUMA node under {sysfs}/devices/system/node lists its CPUs")
    return tuple(int(node) for node, usable in cores.items() if usable)


def _rdma_device_nodes(devfs: Path) -> tuple[str, ...] | Unknown:
    if not devfs.is_dir():
        return Unknown(f"{devfs} does not exist")
    folder = devfs / "infiniband"
    if not folder.exists():
        return ()
    if not os.access(folder, os.R_OK | os.X_OK):
        return Unknown(f"{folder} needs root")
    return tuple(node.name for node in children(folder) if not node.is_dir())


def _nvidia_module(procfs: Path) -> str | Unknown:
    version = read_text(procfs / "driver/nvidia/version")
    return if_known(version, lambda text: "open" if "Open Kernel Module" in text else "proprietary")


def _peer_memory_modules(sysfs: Path) -> tuple[str, ...] | Unknown:
    modules = sysfs / "module"
    if not modules.is_dir():
        return Unknown(f"{modules} does not exist")
    return tuple(name for name in _PEER_MEMORY if (modules / name).exists())


def _pvrdma_module(sysfs: Path) -> bool | Unknown:
    modules = sysfs / "module"
    if not modules.is_dir():
        return Unknown(f"{modules} does not exist")
    return (modules / "vmw_pvrdma").exists()


def _nvidia_pci_addresses(sysfs: Path) -> tuple[str, ...] | Unknown:
    folder = sysfs / "bus/pci/devices"
    if not folder.is_dir():
        return Unknown(f"{folder} does not exist: this machine has no PCI")
    return tuple(device.name for device in children(folder) if _is_nvidia_display(device))


def _is_nvidia_display(device: Path) -> bool:
    if read_text(device / "vendor") != _NVIDIA:
        return False
    pci_class = read_text(device / "class")
    return isinstance(pci_class, str) and pci_class.startswith(_DISPLAY_CLASS)


def _os_name() -> str | Unknown:
    name = find_line(Path("/etc/os-release"), "PRETTY_NAME=")
    return if_known(name, lambda text: text.strip("\"'"))
