"""Start and stop ranks, and run cells on them.

- `cluster`: the public class; `execution`: its cells, push and pull; `registry`: the notebook's
  current cluster; `options`: checks the arguments of a cluster; `durations`: parses durations;
  `start_options`: the options of ``%cluster start``, as a table
- `state`: the state machine, which starts and stops the ranks; `changes`: changes of the ranks;
  `processes`: all processes of a cluster and its channels to the ranks; `recovery`: makes ranks
  usable again; `kept`: finds and stops clusters that outlive their kernel;
  `holder`: the process that is connected to such a cluster
- `cell_queue`: the queue of cells; `cell_run`: one cell; `cell_inbox`: the messages of its ranks;
  `stuck_ranks`: frees its ranks; `prompts`: asks the user for its input;
  `stalls`: explains why it waits or does not stop; `outcomes`: results and errors; `transfer`: the
  data of push and pull; `profiling`: profiles of the ranks; `measuring`: measures VMs, the fabric
  and the cost of recording
- `engines`: ipyparallel's engines as ranks; `members`: the process of each rank, and calls of its
  functions; `backends/`: join ranks in a process group
- `agents`: one `agent` per VM, each connected by an `agent_channel`; `launchers/`: start agents
- `controller`: ipyparallel's controller; `heart_monitor`: registers its engines
- `warm`: the warm process, from which later starts on this machine are forked
- `evidence/`: collects the facts about a failure in one file
- `attributes`: names of attributes of the ranks' objects, for completion
- `sampling`: samples the VMs while cells run; `use_meter`: adds up the use of their GPUs
- `threads`: background tasks and locks

A cell goes from `Cluster.run` through `CellQueue.follow`, which waits for its turn,
`CellRun.wait`, `CellQueue._begin`, `Engines.begin` and `Calls.begin` to ipyparallel, which calls
`workbench.rank.session.run_cell` on each rank. Messages of ranks come through `ClusterProcesses`
and `CellQueue` to `CellRun.deliver`.

When a rank ends, its agent reports the end, and `Members.lost` has the reason. `CellRun` ends the
cell there with an error, and `StuckRankMonitor` frees the ranks that wait for it. `ClusterState`
stays failed until `Engines.restart` or `Engines.resize` forms another ring.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.cluster.cluster import Cluster
    from workbench.cluster.outcomes import RunResult, ValueNotSent
    from workbench.output.sink import NotebookSink, Sink, TextSink
    from workbench.ranks import RankInfo

_MODULES = {
    "Cluster": "workbench.cluster.cluster",
    **dict.fromkeys(("RunResult", "ValueNotSent"), "workbench.cluster.outcomes"),
    **dict.fromkeys(("NotebookSink", "Sink", "TextSink"), "workbench.output.sink"),
    "RankInfo": "workbench.ranks",
}
__all__ = ["Cluster", "NotebookSink", "RankInfo", "RunResult", "Sink", "TextSink", "ValueNotSent"]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, because the controller's process does not need it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
