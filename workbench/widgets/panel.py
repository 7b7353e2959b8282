"""The sidebar panel's side in the kernel: tells of the cluster, starts and stops it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from workbench.cluster import registry
from workbench.errors import WorkbenchError
from workbench.resources.codec import encode
from workbench.widgets.joinedcomm import JoinedComm, cell_parent
from workbench.widgets.vm_watch import VmWatch

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from workbench.cluster import Cluster
    from workbench.cluster.agent import Agent

TARGET = "workbench.cluster"
COMM_ID = "workbench-cluster"

REPEAT_S = 2.0
"""While a cell runs, the state is told this often: a page that is reloaded
meanwhile can listen but cannot ask."""

REST_S = 0.1
"""Changes that come faster than this are told as one."""


def register(shell: InteractiveShell) -> None:
    """Join this kernel to the panel; does nothing outside Jupyter, or a second time."""
    kernel = getattr(shell, "kernel", None)
    if kernel is None or COMM_ID in kernel.comm_manager.comms:
        return
    PanelLink(shell, kernel)


class PanelLink:
    """Answers the panel, and tells it of every change.

    Parameters
    ----------
    shell, kernel
        Of this process.
    """

    def __init__(self, shell: InteractiveShell, kernel: Any) -> None:
        self._cell = cell_parent(shell, kernel)
        self._comm = JoinedComm(kernel, TARGET, COMM_ID, self._on_request)
        self._changed = threading.Event()
        self._cell_runs = False
        self._watch = VmWatch(self._comm.send, _agents, lambda: self._cell_runs)
        shell.events.register("pre_run_cell", self._on_cell_start)
        shell.events.register("post_run_cell", self._on_cell_end)
        registry.subscribe(self._changed.set)
        threading.Thread(target=self._tell, name="workbench-panel", daemon=True).start()
        self._changed.set()

    def _on_cell_start(self, _: Any) -> None:
        self._cell_runs = True
        self._changed.set()

    def _on_cell_end(self, _: Any) -> None:
        self._cell_runs = False

    def _tell(self) -> None:
        while True:
            self._changed.wait(REPEAT_S if self._cell_runs else None)
            self._changed.clear()
            self._comm.send({"type": "state", "cluster": describe(registry.current())})
            time.sleep(REST_S)

    def _on_request(self, request: dict[str, Any]) -> None:
        self._cell.restore()
        kind = request.get("type")
        if kind == "refresh":
            self._changed.set()
            self._watch.tell_again()
        elif kind == "watch":
            self._watch.renew() if request.get("on") else self._watch.stop()
        elif kind == "start":
            self._begin(lambda: registry.start(request.get("n", 0)))
        elif kind == "stop":
            self._begin(registry.stop)
        else:
            self._fail(f"{kind!r}: unknown. Send start, stop, refresh or watch.")

    def _begin(self, task: Callable[[], object]) -> None:
        # In a thread: the shell must stay free for the next request.
        threading.Thread(target=self._attempt, args=(task,), daemon=True).start()

    def _attempt(self, task: Callable[[], object]) -> None:
        try:
            task()
        except WorkbenchError as error:
            self._fail(str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the person who clicked must see it
            self._fail(f"{type(error).__name__}: {error}")
        finally:
            self._changed.set()

    def _fail(self, message: str) -> None:
        self._comm.send({"type": "error", "message": message})


def _agents() -> Sequence[Agent]:
    cluster = registry.current()
    return () if cluster is None else cluster.agents


def describe(cluster: Cluster | None) -> dict[str, Any] | None:
    """Return what the panel shows of a cluster, as JSON."""
    if cluster is None:
        return None
    shown = ("rank", "vm", "pid", "gpu", "nic", "state")
    return {
        "name": cluster.name,
        "state": cluster.state,
        "n": cluster.n,
        "message": cluster.message,
        "ranks": [{name: encode(getattr(info, name)) for name in shown} for info in cluster.ranks],
    }
