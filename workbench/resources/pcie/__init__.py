"""PCIe: the trees that GPUs and NICs hang in, how far they are apart, and what NCCL makes of it.

There may be two trees: the one that the kernel shows, and the one of the topology
file that NCCL is given instead. `records` holds both, `probe` fills it.

- `sysfs`: the kernel's tree; `config`: a device's configuration space
- `nccl_topology`: reading topology files, with `nccl_devices`, which completes their
  devices, and `nccl_parser`, which knows what NCCL's own parser stops at;
  `nccl_topology_text`: writing them;
  `topology_state`: how NCCL fares with its file
- `distances`: NCCL's measure; `gpudirect`: its verdict on every GPU and NIC
"""
