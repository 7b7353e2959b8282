"""Gradient Workbench: what gradient communication costs, live in a notebook.

Three processes share this package: the notebook's kernel, the ranks, and the
Jupyter server. A room (a folder, or a module of its own) belongs to one of
them, or to none (then it serves all). Imports run strictly downward:

===== ==================================== ============= ===========================
floor room                                 process       what lives there
===== ==================================== ============= ===========================
6     `magics.py`, `cli.py`                kernel, shell parse, delegate, display
5     `widgets/`                           kernel        what is seen in a notebook
5     `server/`                            server        REST, WebSocket, one sampler
5     `demo.py`                            shell         runs the quickstart notebook
4     `advisor/`                           any           what slows this training
3     `cluster/`                           kernel        ranks up, down, running cells
2     `timings/`                           kernel        what arrived from the ranks
2     `rank/`                              rank          all that runs inside a rank
2     `fabric/`                            any           what a link should give
2     `doctor/`                            any           rules over snapshots
1     `wire/`                              kernel, rank  what passes between them
1     `resources/`                         any           what hardware exists
1     `horovod_build/`                     shell         builds Horovod for this PyTorch
1     `vms/`                               any, shell    makes VMs for tests and benchmarks
0     `safefiles.py`                       any           files and JSON of other people
0     `errors.py`                          any           the tree of errors
===== ==================================== ============= ===========================

`server` imports only `resources`, `doctor` and `errors`; `rank` only `wire`,
`resources` and `errors`. `tests/test_rooms.py` holds all of this.

Importing this package loads none of torch, horovod, plotly, pandas or pynvml:
every public name below is fetched from its room when it is first used.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__version__ = "0.1.0"

_HOMES = {
    "Cluster": "workbench.cluster",
    "Distance": "workbench.resources",
    "Snapshot": "workbench.resources",
    "diagnose": "workbench.doctor",
    "diagnose_all": "workbench.doctor",
    "explain": "workbench.advisor",
    "list_runs": "workbench.timings.run",
    "open_run": "workbench.timings.run",
    "take_snapshot": "workbench.resources",
    **dict.fromkeys(
        (
            *("BuildFailed", "CellError", "CellInterrupted", "CellTimeout", "ClusterError"),
            *("ClusterStopped", "HorovodError", "HorovodMissing", "NoCluster", "RankError"),
            *("RanksFailed", "RunError", "SnapshotError", "StartFailed", "UsageError"),
            *("VmsUnavailable", "WireError", "WorkbenchError"),
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
    "Snapshot",
    "SnapshotError",
    "StartFailed",
    "UsageError",
    "VmsUnavailable",
    "WireError",
    "WorkbenchError",
    "__version__",
    "diagnose",
    "diagnose_all",
    "explain",
    "list_runs",
    "open_run",
    "take_snapshot",
]


def __getattr__(name: str) -> Any:
    """Fetch a public name from its room (PEP 562)."""
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOMES))


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics: ``%load_ext workbench``."""
    session = sys.modules.get("workbench.rank.session")
    if session is not None and session.is_joined():
        from workbench.errors import UsageError

        raise UsageError(
            "%load_ext workbench: the magics are for the notebook, and this cell runs on a rank. "
            "Use them in a cell without %%distributed."
        )
    from workbench.magics import register

    register(shell)


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    return [{"src": "labextension", "dest": "gradient-workbench"}]


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "workbench.server"}]
