"""VMs of another size or system than the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median_low

from workbench.doctor.across.odd import Look, known, odd
from workbench.doctor.finding import Finding, Severity
from workbench.resources import Snapshot
from workbench.resources.summary import show_bytes

_CORES = (
    "Where there are fewer cores, data loaders and communication threads wait for them, and every "
    "step of all VMs waits for those."
)
_MEMORY = "The VM with the least memory bounds the workers and the caches of the data loaders."
_NUMA = (
    "Cores, GPUs and NICs are near each other in another way: a binding that fits one VM does not "
    "fit the other."
)
_KERNEL = (
    "Drivers, RDMA and networking come from the kernel: a fault on some VMs only may come from it."
)
_HYPERVISOR = (
    "Each hypervisor shows PCIe, clocks and NUMA in its own way: NCCL may choose other ways."
)
_NEAR = 0.05  # MemTotal of equal VMs differs by what each kernel keeps for itself


def machines_unlike(snapshots: Mapping[str, Snapshot]) -> Iterator[Finding]:
    """Find other cores, memory, NUMA nodes, hypervisors or kernels."""
    yield from _found(snapshots, _cores, "warning", _CORES)
    yield from _found(snapshots, _memory(snapshots), "info", _MEMORY)
    yield from _found(snapshots, _numa, "info", _NUMA)
    yield from _found(snapshots, _kernel, "info", _KERNEL)
    yield from _found(snapshots, _hypervisor, "info", _HYPERVISOR)


def _found(
    snapshots: Mapping[str, Snapshot], look: Look, severity: Severity, why: str
) -> Iterator[Finding]:
    for found in odd(snapshots, look):
        yield Finding(
            rule="machines_unlike",
            severity=severity,
            subject=found.vms,
            evidence=found.evidence,
            why=why,
            cure="Ask for VMs of one size and one image; `workbench resources` on each shows what "
            "it was given.",
            source="PyTorch, Performance Tuning Guide, Load-balance workload in a distributed "
            "setting",
        )


def _cores(snapshot: Snapshot) -> str | None:
    cpus = known(snapshot.host.cpus)
    return None if cpus is None else f"{cpus} usable core{'' if cpus == '1' else 's'}"


def _memory(snapshots: Mapping[str, Snapshot]) -> Look:
    sizes = [size for one in snapshots.values() if (size := _bytes(one)) is not None]
    usual = median_low(sizes) if sizes else 0

    def look(snapshot: Snapshot) -> str | None:
        size = _bytes(snapshot)
        if size is None:
            return None
        near = abs(size - usual) <= _NEAR * usual
        return f"{show_bytes(usual if near else size)} of memory"

    return look


def _bytes(snapshot: Snapshot) -> int | None:
    limit, total = snapshot.host.memory_limit_bytes, snapshot.host.memory_bytes
    sizes = [size for size in (limit, total) if isinstance(size, int)]
    return min(sizes) if isinstance(total, int) else None


def _numa(snapshot: Snapshot) -> str | None:
    nodes = known(snapshot.host.numa_nodes)
    return None if nodes is None else f"{nodes} NUMA node{'' if nodes == '1' else 's'}"


def _kernel(snapshot: Snapshot) -> str | None:
    kernel = known(snapshot.host.kernel)
    return None if kernel is None else f"kernel {kernel}"


def _hypervisor(snapshot: Snapshot) -> str | None:
    hypervisor = known(snapshot.host.hypervisor)
    return "no hypervisor" if hypervisor == "none" else hypervisor
