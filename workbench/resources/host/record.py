"""The record of the host in a snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from workbench.resources.unknown import EARLIER, Unknown

UNLIMITED = "unlimited"
"""Value of a limit that the kernel does not set; it is known, so it is not `Unknown`."""


@dataclass(frozen=True)
class Host:
    """The host: a VM or machine, and the limits of this process.

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
        capability CAP_IPC_LOCK); RDMA memory must be locked.
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
        this process runs in one; ``"none"`` if nothing indicates one.
    rdma_device_nodes
        Names in ``/dev/infiniband`` that are visible to this process:
        ``("rdma_cm", "uverbs0")``. libibverbs opens a ``uverbs`` node for each device.
    clock_source
        The kernel's clock source: ``"tsc"``, ``"kvm-clock"``, ``"acpi_pm"``, ...
    usable_numa_nodes
        NUMA nodes with a CPU on which this process may run.
    nccl_settings
        NCCL's settings of this process, from its environment and ``nccl.conf``.
    nvidia_module
        ``"open"`` or ``"proprietary"``: which of NVIDIA's kernel modules is loaded.
    peer_memory_modules
        Loaded modules that give NICs access to GPU memory (``"nvidia_peermem"``); the open
        module needs none, as it uses dma-buf.
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
