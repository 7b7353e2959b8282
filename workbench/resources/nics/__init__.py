"""Network interfaces and RDMA ports, and their traffic, from sysfs.

- `probe`: the NICs of a snapshot, as `records`; `rdma`: RDMA ports
- `counters`: the traffic in a sample, with `rdma_counters`, which also include congestion
  and errors
"""
