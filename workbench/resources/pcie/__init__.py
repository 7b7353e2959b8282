"""PCIe trees of GPUs and NICs, the distances between them, and how NCCL uses them.

There may be two trees: one from the kernel, and one from the topology file that NCCL
reads instead. `probe` reads both, and `records` has the result.

- `sysfs`: the kernel's tree; `config`: a device's configuration space
- `nccl_topology`: reading topology files; `nccl_devices`: completing their devices;
  `nccl_parser`: what NCCL's own parser rejects; `nccl_topology_text`: writing topology
  files; `topology_state`: whether NCCL can read its file
- `distances`: distances by NCCL's rules; `gpudirect`: whether NCCL uses GPUDirect RDMA
"""
