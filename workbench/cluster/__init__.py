"""Bringing ranks up and down, and running cells on them.

- `cluster`: the door; `registry`: the notebook's current one
- `options`: what is asked for; `hosts`: the VMs as users write them; `agents`:
  one process on each, over `ssh`
- `engines`: ipyparallel's engines as ranks; `controller_process`: the controller
  they meet at, whose process is `controller`
- `network`, `placement`: which interface, GPU and cores a rank gets; `preflight`:
  what is looked at before, and `survey` without, a start
- `launcher`: the same for clusters that ipyparallel itself starts
- `ring`: forming a Horovod ring; `ranks`: who is in it; `calibration`: what
  its fabric gives
- `run`: one cell on its way; `fold` and `sink`: its output; `guard` and
  `failures`: what happens when a rank fails; `hang`: why a cell stands still;
  `turns`: one cell after another; `idle`: when nobody uses it
- `keeping`: what the next kernel needs; `holder`: the process that keeps another
  meanwhile; `child`: either way, a process as its kernel sees it
- `background`: what runs in a thread
"""

from workbench.cluster.cluster import Cluster
from workbench.cluster.ranks import RankInfo
from workbench.cluster.run import Kept, RunResult
from workbench.cluster.sink import NotebookSink, Sink, TextSink

__all__ = ["Cluster", "Kept", "NotebookSink", "RankInfo", "RunResult", "Sink", "TextSink"]
