"""GPUs by NVML: their properties, state, interconnect and use.

- `probe`: the GPUs of a snapshot; `records`, filled by `state` and `nvlinks`; `vgpu`: decoding
  the name of a vGPU profile; `profiles`: the smallest share of a board that holds some memory
- `counters`: the use in a sample, and the processes on GPUs; `link_counters`: the traffic over
  NVLink and PCIe
- `nvml`: calling NVML, listing its devices, reading its fields
"""
