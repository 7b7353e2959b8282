"""The host: CPUs, memory, limits, container and hypervisor.

- `probe`: the host of a snapshot, as a `record`
- `cgroup`: limits and use of control groups; `container` and `hypervisor`: their kind;
  `numa`: NUMA nodes, their cores, and the node of each device
- `identity`: distinguishing machines, even if they have the same name
"""
