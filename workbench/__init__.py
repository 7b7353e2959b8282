"""Gradient Workbench: what gradient communication costs, live in a notebook.

The package runs in four processes: the notebook's kernel, the agent of each VM, the
ranks that the agent starts, and the Jupyter server. Each subpackage or top-level module
belongs to one of them, or can run in any. Imports only go to lower layers:

===== ==================================== ============= ===========================
layer package                              process       content
===== ==================================== ============= ===========================
7     `cli.py`                             shell         parse, delegate, print
6     `magics.py`, `fabric_magics.py`      kernel        parse, delegate, display
6     `completion.py`                      kernel        completes magics and rank names
6     `cli_runs.py`                        shell         the subcommands `use` and `replay`
5     `magic_line.py`                      kernel        parses the lines of magics
5     `widgets/`                           kernel        views in a notebook
5     `server/`                            server        REST, WebSocket, one sampler
5     `demo.py`                            shell         runs the quickstart notebook; a replay
5     `tensorflow.py`                      rank          what cells with TensorFlow import
4     `advisor/`                           any           what slows down training
3     `cluster/`                           kernel        start and stop ranks, run cells
3     `agent/`                             one per VM    starts and supervises a VM's ranks
2     `timings/`                           kernel        recorded iterations
2     `scalars.py`                         any           what users log with iterations
2     `loading.py`                         any           iterables that users name as loaders
2     `output/`                            kernel        merges the output of ranks
2     `rank/`                              rank          code that runs in a rank
2     `hosts/`                             any           VMs as users write them
2     `fabric/`                            any           expected and measured rates of links
2     `doctor/`                            any           rules over snapshots
1     `ranks.py`                           any           rank numbers as users write and read them
1     `wire/`                              kernel, rank  messages between them
1     `resources/`                         any           hardware and its use
1     `schema/`                            any           figures, declared once
1     `horovod_build/`                     shell         builds Horovod for this PyTorch
1     `testbed/`                           any, shell    VMs for tests and benchmarks
0     `redaction.py`                       any           removes secrets from text
0     `safefiles.py`                       any           untrusted files and JSON
0     `logs.py`                            any           what each process decided and tried
0     `errors.py`                          any           exceptions
===== ==================================== ============= ===========================

`server` imports only `resources`, `schema`, `doctor`, `errors` and `cluster.kept`; `rank` only
`wire`, `resources`, `safefiles` and `errors`; `agent` also `rank`, `redaction` and `logs`.
`tests/test_layers.py` checks all of this.

Importing this package loads none of torch, horovod, plotly, pandas or pynvml:
every public name is imported when it is first used.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from workbench import logs
from workbench._version import __version__

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from workbench.advisor import explain, verdict, what_if
    from workbench.advisor.scaling import scaling_study
    from workbench.advisor.scaling_record import ScalingStudy
    from workbench.cluster import Cluster
    from workbench.doctor import diagnose, diagnose_all
    from workbench.errors import (
        BuildFailed,
        CellError,
        CellInterrupted,
        CellTimeout,
        ClusterError,
        ClusterStopped,
        HorovodError,
        HorovodMissing,
        NoCluster,
        RankError,
        RanksFailed,
        RunError,
        SnapshotError,
        StartFailed,
        StudyInterrupted,
        UsageError,
        VmsUnavailable,
        WireError,
        WorkbenchError,
    )
    from workbench.loading import data
    from workbench.resources import Distance, Snapshot, take_snapshot
    from workbench.scalars import log
    from workbench.timings.run import list_runs, open_run

_MODULES = {
    "Cluster": "workbench.cluster",
    "Distance": "workbench.resources",
    "ScalingStudy": "workbench.advisor.scaling_record",
    "Snapshot": "workbench.resources",
    "data": "workbench.loading",
    "diagnose": "workbench.doctor",
    "diagnose_all": "workbench.doctor",
    "explain": "workbench.advisor",
    "list_runs": "workbench.timings.run",
    "log": "workbench.scalars",
    "open_run": "workbench.timings.run",
    "scaling_study": "workbench.advisor.scaling",
    "take_snapshot": "workbench.resources",
    "verdict": "workbench.advisor",
    "what_if": "workbench.advisor",
    **dict.fromkeys(
        (
            *("BuildFailed", "CellError", "CellInterrupted", "CellTimeout", "ClusterError"),
            *("ClusterStopped", "HorovodError", "HorovodMissing", "NoCluster", "RankError"),
            *("RanksFailed", "RunError", "SnapshotError", "StartFailed"),
            *("StudyInterrupted", "UsageError", "VmsUnavailable", "WireError", "WorkbenchError"),
        ),
        "workbench.errors",
    ),
}

__all__ = [
    "BuildFailed",
    "CellError",
    "CellInterrupted",
    "CellTimeout",
    "Cluster",
    "ClusterError",
    "ClusterStopped",
    "Distance",
    "HorovodError",
    "HorovodMissing",
    "NoCluster",
    "RankError",
    "RanksFailed",
    "RunError",
    "ScalingStudy",
    "Snapshot",
    "SnapshotError",
    "StartFailed",
    "StudyInterrupted",
    "UsageError",
    "VmsUnavailable",
    "WireError",
    "WorkbenchError",
    "__version__",
    "data",
    "diagnose",
    "diagnose_all",
    "explain",
    "list_runs",
    "log",
    "open_run",
    "scaling_study",
    "take_snapshot",
    "verdict",
    "what_if",
]


logs.set_up()


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use (PEP 562)."""
    if name in _MODULES:
        value = getattr(importlib.import_module(_MODULES[name]), name)
        if name == "Cluster":
            value.after_cell = _store_verdict
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_MODULES))


def _store_verdict(cluster: Cluster | None) -> None:
    """Store the verdict of a cluster's last cell; the advisor is loaded after the first cell."""
    importlib.import_module("workbench.advisor.verdict").conclude(cluster)


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics: ``%load_ext workbench``."""
    session = sys.modules.get("workbench.rank.session")
    if session is not None and session.is_joined():
        from workbench.errors import UsageError

        raise UsageError(
            "%load_ext workbench: the magics only work in the notebook's kernel, and this cell "
            "runs on a rank. Use them in a cell without %%distributed."
        )
    from workbench import completion, fabric_magics, magics
    from workbench.widgets import run_files

    magics.register(shell)
    fabric_magics.register(shell)
    completion.register(shell)
    run_files.register(shell)


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    return [{"src": "labextension", "dest": "gradient-workbench"}]


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "workbench.server"}]
