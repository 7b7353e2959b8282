"""Network interfaces and RDMA ports, and their traffic, from sysfs.

- `probe`: the NICs of a snapshot, as `records`
- `counters`: the traffic, congestion and errors in a sample
"""
