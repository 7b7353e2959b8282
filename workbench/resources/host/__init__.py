"""The machine itself: CPUs, memory, limits, and in what it runs.

- `probe`: what there is, for a snapshot, as a `record`
- `cgroup`: what a container may use, and uses; `container` and `hypervisor`:
  which one this is; `numa`: nodes, their cores, and which device is at which
- `identity`: telling machines apart, also where they share a name
"""
