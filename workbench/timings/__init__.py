"""The timings that ranks record, received by the kernel, in memory and on disk.

The path of a record: `timings.Timings` receives it, `store` keeps it in memory as a row,
`source.LiveSource` passes it to the views and `storage` writes it to disk. `batch` decodes records
that arrive together, `counts` counts them, and `collective_records` keeps their collectives.
`source` is the interface of rows and records that figures and exports read.

- Tables and figures: `queries` has all of them. `derive` computes bandwidths and ratios.
  `figures` defines the typical iterations and how the mean of each figure is computed,
  `summary` has key figures, `totals` the cost of each collective, `frame` pandas tables, and
  `compare` the differences of two runs. `groups` names groups of ranks, and `stages` finds the
  stages of pipelines and how long they are idle. `buffers` finds which collectives travelled
  together, and how long their transfer took. `export/` is for other tools.
- Waiting: `clocks` and `cell_clocks` convert the ranks' times to the kernel's clock. `lateness`
  finds the ranks that waited. `stragglers` finds the cause from the `ring_delays` of each cell:
  slow ranks, `slow_links`, or `pauses` of VMs. `noise` separates outliers from noise.
- `separate`: detects a cell where the ranks exchange no gradients.
- The cost of recording: `overhead` compares runs of a cell with and without recording.
- `verdict`: the verdict of a cell, which the advisor computes.
- On disk: `runs` finds and removes runs, `run.Run` is one run, `run_facts` has its facts, and
  `folder` is its folder, which `run_lock` locks. `writer` and `reader` write and read its files,
  which `arrow_files` defines.
"""

from workbench.timings.summary import Summary
from workbench.timings.timings import Timings

__all__ = ["Summary", "Timings"]
