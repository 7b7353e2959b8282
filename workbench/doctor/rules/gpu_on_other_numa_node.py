"""A GPU beside CPUs that this process may not use."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.doctor.reading import gpus_in_sysfs
from workbench.doctor.several import named
from workbench.resources import Snapshot, Unknown


def gpu_on_other_numa_node(snapshot: Snapshot) -> Iterator[Finding]:
    """Find GPUs on NUMA nodes none of whose CPUs this process may run on."""
    usable = snapshot.host.usable_numa_nodes
    if isinstance(usable, Unknown) or not usable:
        return
    found: dict[int, list[int]] = {}
    for gpu, device in gpus_in_sysfs(snapshot):
        node = device.numa_node
        if isinstance(node, int) and node not in usable:
            found.setdefault(node, []).append(gpu.index)
    for node, indices in found.items():
        yield Finding(
            rule="gpu_on_other_numa_node",
            severity="warning",
            subject=named(set(indices)),
            evidence=f"on NUMA node {node}; this process may run on CPUs of node "
            f"{', '.join(map(str, usable))} only",
            why="Every batch to the GPU, and NCCL's traffic through host memory, crosses the link "
            "between the CPUs.",
            cure=f"Start the rank with `numactl --cpunodebind={node} --membind={node}`; let a "
            "container have those CPUs (`--cpuset-cpus`; in Kubernetes the Topology Manager's "
            "policy `single-numa-node`). NCCL_IGNORE_CPU_AFFINITY=1 lets NCCL's own threads go "
            "by the GPU where CPUs are bound by affinity alone.",
            source="NVIDIA, NCCL User Guide, NCCL_IGNORE_CPU_AFFINITY; "
            "PyTorch, Performance Tuning Guide",
        )
