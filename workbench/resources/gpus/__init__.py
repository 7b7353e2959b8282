"""GPUs: what each is, what state it is in, what joins them, and what they do now, by NVML.

- `probe`: who is there, for a snapshot: `records`, filled by `state`, `licences`,
  `nvlinks` and `pairs`; `vgpu`: what the name of a vGPU profile says
- `counters`: what they do now, for a sample, with `nvlink_counters`,
  `pcie_counters`, `processes` (who uses a GPU) and `idle` (since when nobody does)
- `nvml`: the one way to the driver; `nvml_devices`: walking what it knows, and
  asking about one; `nvml_fields`: counters that come with their time
- `summary`: all of that in lines of text
"""
