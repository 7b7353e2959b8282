"""Figures that the product shows, against independent measurements of the same run: ``make truth``.

- `kinds`: every kind of figure, what it is compared with, and the bound
- `table`: comparisons, whether they are within the bound, and the page that has them
- `arithmetic`: figures that need no ranks: plans, topology files, costs of recorded iterations
- `training`: two ranks on this machine, against clocks in the user's script and /proc
- `buckets`: DDP, against the stamps of a communication hook
- `wire`: two VMs over shaped links, against captured packets and NIC counters; `capture` is the
  program that captures them
- `timeline`: two VMs, against Horovod's Timeline
- `links`: a calibration and a matrix, against the rates that `tc` was given
- `planted`: planted delays, causes and predictions, against what was planted and what came true
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

START_S = 300
"""When a cluster that does not start is given up, however slow the machine."""
