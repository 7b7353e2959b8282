"""The VM: CPUs, memory, limits, container and hypervisor.

- `probe`: the host of a snapshot
- `cgroup`: limits and use of control groups; `machine`: hypervisor, container, and identity
"""
