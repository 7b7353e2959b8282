"""Probe the VM: CPUs, memory, limits, hypervisor, kernel."""

from __future__ import annotations

import math
import os
import resource
from dataclasses import fields
from pathlib import Path

from workbench.resources.files import children, read_text
from workbench.resources.host.cgroup import Cgroups, find_cgroups
from workbench.resources.host.container import find_container
from workbench.resources.host.hypervisor import find_hypervisor
from workbench.resources.host.numa import cores_of_nodes
from workbench.resources.host.record import UNLIMITED, Host
from workbench.resources.nccl_settings import NcclSettings
from workbench.resources.unknown import Unknown

_NVIDIA = "0x10de"
_DISPLAY_CLASS = "0x03"
_CAP_IPC_LOCK = 14  # linux/capability.h
_PEER_MEMORY = ("nvidia_peermem", "nv_peer_mem")
_CLOCK = "current_clocksource"
_SHM = "/dev/shm"  # noqa: S108  # only its size is read


def probe_host(sysfs: Path, procfs: Path, devfs: Path, nccl: NcclSettings) -> Host:
    """Return the properties of the VM and the limits of this process."""
    cgroups = find_cgroups(sysfs, procfs)
    return Host(
        hostname=read_text(procfs / "sys/kernel/hostname"),
        hypervisor=find_hypervisor(sysfs, procfs),
        cpus=usable_cpus(cgroups),
        cpus_total=_cpus_total(procfs),
        memory_bytes=meminfo_bytes(procfs, "MemTotal"),
        memory_limit_bytes=_or_unlimited(cgroups.memory_limit_bytes()),
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
    )


def unknown_host(reason: str) -> Host:
    """Return a host whose fields are all `Unknown`, with one reason."""
    return Host(**{field.name: Unknown(reason) for field in fields(Host)})


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
    text = read_text(procfs / "meminfo")
    if isinstance(text, Unknown):
        return text
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    return Unknown(f"{procfs}/meminfo has no {name}")


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


def _soft_limit(which: int) -> int | str:
    soft, _ = resource.getrlimit(which)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def _may_lock_anything(procfs: Path) -> bool:
    """Return whether this process has CAP_IPC_LOCK, which overrides RLIMIT_MEMLOCK."""
    text = read_text(procfs / "self/status")
    if isinstance(text, Unknown):
        return False
    for line in text.splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_IPC_LOCK & 1)
    return False


def _or_unlimited(limit: int | None) -> int | str:
    return UNLIMITED if limit is None else limit


def _numa_nodes(sysfs: Path) -> int | Unknown:
    folder = sysfs / "devices/system/node"
    count = sum(x.name.startswith("node") and x.name[4:].isdigit() for x in children(folder))
    return count or Unknown(f"the kernel lists no NUMA nodes under {folder}")


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
    text = read_text(procfs / "driver/nvidia/version")
    if isinstance(text, Unknown):
        return text
    return "open" if "Open Kernel Module" in text else "proprietary"


def _peer_memory_modules(sysfs: Path) -> tuple[str, ...] | Unknown:
    modules = sysfs / "module"
    if not modules.is_dir():
        return Unknown(f"{modules} does not exist")
    return tuple(name for name in _PEER_MEMORY if (modules / name).exists())


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
    text = read_text(Path("/etc/os-release"))
    if isinstance(text, Unknown):
        return text
    for line in text.splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip("\"'")
    return Unknown("/etc/os-release has no PRETTY_NAME")
