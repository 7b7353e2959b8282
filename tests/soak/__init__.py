"""Random faults in one process, one after another: what they cost, and what they leave behind.

``python -m tests.soak --seed 7 --out FILE`` plays them on ranks of this machine and on three test
VMs, and writes a table. ``--only 412`` plays one of them again.

- `faults`: each kind of fault, as a cell and what the kernel does meanwhile
- `sites`: where the ranks are, which can be started again, and how they are asked
- `levels`: what could be left behind: processes, threads, descriptors, sockets, files, memory
- `clock`: a step of the wall clock, as the processes of this run see it
- `soaking`: plays a fault, and checks everything after it
- `report`: the table

The process that plays the faults is in the place of a notebook's kernel.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
