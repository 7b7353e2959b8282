"""GPUs by NVML: their properties, state, interconnect and utilization.

- `probe`: the GPUs of a snapshot; `records`, filled by `state`, `licences`, `nvlinks`
  and `pairs`; `vgpu`: decoding the name of a vGPU profile
- `counters`: the utilization in a sample, with `nvlink_counters`, `pcie_counters`,
  `processes` (which use a GPU) and `idle` (how long a GPU has been idle)
- `nvml`: calls of the driver; `nvml_devices`: listing and querying devices;
  `nvml_fields`: counters with their timestamps
- `summary`: GPUs as text
"""
