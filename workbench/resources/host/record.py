"""The VM itself, as a snapshot holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from workbench.resources.unknown import EARLIER, Unknown

UNLIMITED = "unlimited"
"""What a limit says where the kernel sets none; it is known, so not `Unknown`."""


@dataclass(frozen=True)
class Host:
    """The VM itself.

    Attributes
    ----------
    hostname
        As the kernel has it.
    hypervisor
        ``"KVM"``, ``"VMware"``, ``"Hyper-V"``, ``"Xen"``, ...; ``"none"`` on bare metal.
    cpus
        CPUs that this process may use at once: CPU affinity and cgroup quota.
    cpus_total
        CPUs of the VM.
    memory_bytes
        Memory of the VM.
    memory_limit_bytes
        The lowest cgroup limit above this process, or ``"unlimited"``.
    shm_bytes
        Size of ``/dev/shm``, which DataLoader workers and NCCL share memory through.
    memlock_bytes
        RLIMIT_MEMLOCK of this process, or ``"unlimited"`` (by that limit, or by the
        capability CAP_IPC_LOCK); RDMA memory must be locked.
    numa_nodes
        NUMA nodes that the guest sees.
    nvidia_pci_addresses
        PCI addresses of NVIDIA display devices, whether a driver holds them or not.
    kernel, os
        Kernel release, and the distribution's name for itself.
    open_files
        RLIMIT_NOFILE of this process (the soft one), or ``"unlimited"``.
    container
        ``"docker"``, ``"podman"``, ``"kubernetes"``, ``"lxc"``, ``"apptainer"``, ... where
        this process runs in one; ``"none"`` where nothing tells of one.
    rdma_device_nodes
        Names below ``/dev/infiniband`` that this process sees: ``("rdma_cm", "uverbs0")``;
        libibverbs opens an ``uverbs`` node for each device.
    clock_source
        What the kernel reads the time from: ``"tsc"``, ``"kvm-clock"``, ``"acpi_pm"``, ...
    usable_numa_nodes
        NUMA nodes that have a CPU which this process may run on.
    nccl_settings
        NCCL's settings as this process has them: environment, then ``nccl.conf``.
    nvidia_module
        ``"open"`` or ``"proprietary"``: which of NVIDIA's kernel modules is loaded.
    peer_memory_modules
        Those loaded that open GPU memory to NICs (``"nvidia_peermem"``); the open
        module does so without one, by dma-buf.
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
