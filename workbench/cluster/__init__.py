"""Bringing ranks up and down, and running cells on them.

- `cluster`: the door; `registry`: the notebook's current one
- `options`: what is asked for; `hosts` and `host_file`: the VMs as users write
  them, each a `host`; `durations` and `ranks`: how both are written
- `lifecycle`: up, down, a change of ranks; `condition`: the state, and what to do
  about it; `running`: what there is between start and end
- `cells`: one cell after another by `turns`, each a `run` on its way; `sink`: where
  its output goes, merged by `fold` while it runs, by `merge` in the end, and cut
  to an `excerpt`; `guard` and `failures`: what happens when a rank fails;
  `hang`: why a cell stands still; `idle`: when nobody uses the cluster
- `engines`: ipyparallel's engines as ranks, reached by `calls`; `members`: who
  they are, and new ones; `ring`: forming a Horovod ring; `ranks`: what users see
- `agents`: one `agent` on each VM, over `ssh` and an `agent_channel`;
  `controller_process`: the controller that engines meet at, whose process is
  `controller`
- `network`, `placement`: which interface, GPU and cores a rank gets; `preflight`:
  what is looked at before, and `survey` without, a start; `calibration`: what
  the fabric gives
- `clock_pings`: what time it is on the ranks
- `launcher`: the same for clusters that ipyparallel itself starts
- `keeping`: what the next kernel needs; `holder`: the process that keeps another
  meanwhile; `child`: either way, a process as its kernel sees it
- `background`: what runs in a thread
"""

from workbench.cluster.cluster import Cluster
from workbench.cluster.ranks import RankInfo
from workbench.cluster.run import Kept, RunResult
from workbench.cluster.sink import NotebookSink, Sink, TextSink

__all__ = ["Cluster", "Kept", "NotebookSink", "RankInfo", "RunResult", "Sink", "TextSink"]
