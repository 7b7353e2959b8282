"""PCIe trees of GPUs and NICs, the distances between them, and how NCCL uses them.

There may be two trees: one from the kernel, and one from the topology file that NCCL
reads instead. `probe` reads both, and `records` defines the result.

- `nccl_topology`: reading topology files; `nccl_devices`: completing their devices;
  `nccl_xml`: writing them, and what NCCL's own parser rejects
- `distances`: distances and GPUDirect RDMA by NCCL's rules
"""
