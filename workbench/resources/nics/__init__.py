"""The network: plain interfaces and RDMA ports, and what passes over them, from sysfs.

- `probe`: who is there, for a snapshot: `records`; `rdma`: the ports among them
- `counters`: what passes now, for a sample, with `rdma_counters`, which also
  know of congestion and errors
"""
