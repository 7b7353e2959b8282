"""Bringing ranks up and down, and running cells on them.

- `cluster`: the door; `registry`: the notebook's current one
- `engines`: ipyparallel's engines as ranks; `processes`: what runs for them on
  this machine; `controller`: one of those
- `ring`: forming a Horovod ring; `ranks`: who is in it; `calibration`: what
  its fabric gives
- `run`: one cell on its way; `fold` and `sink`: its output; `guard` and
  `failures`: what happens when a rank fails; `turns`: one cell after another
- `background`: what runs in a thread
"""

from workbench.cluster.cluster import Cluster
from workbench.cluster.ranks import RankInfo
from workbench.cluster.run import Kept, RunResult
from workbench.cluster.sink import NotebookSink, Sink, TextSink

__all__ = ["Cluster", "Kept", "NotebookSink", "RankInfo", "RunResult", "Sink", "TextSink"]
