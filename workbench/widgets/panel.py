"""The kernel's end of the sidebar panel: sends the cluster's state, and changes the cluster."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from workbench.cluster import registry
from workbench.resources.codec import encode
from workbench.widgets import cluster_actions
from workbench.widgets.cluster_entry import ClusterEntry
from workbench.widgets.preopened_comm import PreopenedComm, cell_parent
from workbench.widgets.training_share import TrainingShare
from workbench.widgets.vm_watch import VmWatch

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from workbench.cluster import Cluster
    from workbench.cluster.agent import Agent
    from workbench.fabric import FittedFabric
    from workbench.ranks import RankInfo
    from workbench.widgets.live import LiveView

_log = logging.getLogger(__name__)

TARGET = "workbench.cluster"
COMM_ID = "workbench-cluster"

REPEAT_S = 2.0
"""Interval between states that are sent while a cell runs.

A page that is reloaded during a cell can listen but cannot send requests. While a cluster runs,
the state is also checked at this interval, because the loss of a rank between cells sends no
notification.
"""

MIN_INTERVAL_S = 0.1
"""Changes within this time are sent as one message."""


_ACTIONS: dict[Any, Callable[[dict[str, Any]], None]] = {
    "start": lambda request: cluster_actions.start(request.get("options")),
    "restart": lambda _: cluster_actions.restart(),
    "resize": lambda request: cluster_actions.resize(request.get("ranks")),
    "calibrate": lambda _: cluster_actions.calibrate(),
    "stop": lambda _: cluster_actions.stop(),
}
"""Requests that change the cluster, by type."""


def register(shell: InteractiveShell) -> None:
    """Connect this kernel to the panel, unless it is connected or runs outside Jupyter."""
    kernel = getattr(shell, "kernel", None)
    if kernel is None or COMM_ID in kernel.comm_manager.comms:
        return
    # The link is not stored: its thread and its registered callbacks keep it alive.
    PanelLink(shell, kernel)


class PanelLink:
    """The kernel's connection to the panel: answers requests and sends changes of the cluster."""

    def __init__(self, shell: InteractiveShell, kernel: Any) -> None:
        self._cell_parent = cell_parent(shell, kernel)
        self._comm = PreopenedComm(kernel, TARGET, COMM_ID, self._on_request)
        self._changed = threading.Event()
        self._cell_runs = False
        self._entry = ClusterEntry(getattr(kernel.parent, "connection_file", ""))
        self._share = TrainingShare(self._comm.send)
        self._watch = VmWatch(self._comm.send, _agents, lambda: self._cell_runs, _ranks)
        shell.events.register("pre_run_cell", self._on_cell_start)
        shell.events.register("post_run_cell", self._on_cell_end)
        registry.subscribe(self._changed.set)
        threading.Thread(target=self._send_changes, name="workbench-panel", daemon=True).start()
        self._changed.set()

    def _on_cell_start(self, _: Any) -> None:
        self._cell_runs = True
        self._changed.set()

    def _on_cell_end(self, _: Any) -> None:
        self._cell_runs = False
        self._changed.set()

    def _send_changes(self) -> None:
        """Send the cluster's state after each change, and repeatedly while a cell runs."""
        sent_state: dict[str, Any] | None = None
        while True:
            is_up = sent_state is not None and sent_state["state"] != "stopped"
            changed = self._changed.wait(REPEAT_S if self._cell_runs or is_up else None)
            self._changed.clear()
            cluster = registry.current()
            state = describe(cluster)
            if changed or self._cell_runs or state != sent_state:
                self._comm.send({"type": "state", "cluster": state})
                self._publish(cluster)
            if state != sent_state and state is not None:
                _log.debug("sent the panel the state of %s: %s", state["name"], state["state"])
            if state != sent_state and state is not None and state["state"] == "failed":
                registry.changed()  # other listeners may not know that a rank was lost
            sent_state = state
            time.sleep(MIN_INTERVAL_S)

    def _publish(self, cluster: Cluster | None) -> None:
        """Send the state to the user's other notebooks and to the status bar."""
        try:
            self._entry.update(cluster)
            self._share.update(cluster, now=not self._cell_runs)
        except Exception:  # noqa: BLE001 - the panel must get further states
            _log.exception("the status bar and other notebooks do not get this state")

    def _on_request(self, request: dict[str, Any]) -> None:
        self._cell_parent.restore()
        kind = request.get("type")
        if kind == "refresh":
            self._changed.set()
            self._watch.refresh()
        elif kind == "watch":
            self._watch.renew() if request.get("on") else self._watch.stop()
        elif kind == "live":
            cluster_actions.run_in_thread(self._open_live, partial(self._fail, kind), lambda: None)
        elif kind in _ACTIONS:
            cluster_actions.run_in_thread(
                lambda: _ACTIONS[kind](request), partial(self._fail, kind), lambda: self._end(kind)
            )
        else:
            kinds = ", ".join((*_ACTIONS, "refresh", "live"))
            self._fail(kind, f"{kind!r}: unknown request. Send {kinds} or watch.")

    def _open_live(self) -> None:
        """Start the live view of the current cluster for a tab, and send its first snapshot."""
        from workbench.widgets.views import timings_view

        view: LiveView = timings_view(registry.required(), "live")
        self._comm.send({"type": "live", "snapshot": view.open_tab()})

    def _end(self, kind: Any) -> None:
        self._changed.set()
        self._comm.send({"type": "done", "request": kind})

    def _fail(self, kind: object, message: str) -> None:
        self._comm.send({"type": "error", "request": str(kind), "message": message})


def _agents() -> Sequence[Agent]:
    cluster = registry.current()
    return () if cluster is None else cluster.agents


def _ranks() -> Sequence[RankInfo]:
    cluster = registry.current()
    return () if cluster is None else cluster.ranks


def _calibrated(fabric: FittedFabric | None) -> str:
    """Return the result of the calibration in one line; empty without a calibration."""
    if fabric is None:
        return ""
    if fabric.n == 1:
        return " ".join(fabric.sentences)
    return " ".join([fabric.sentences[0], fabric.caveat]).strip()


def describe(cluster: Cluster | None) -> dict[str, Any] | None:
    """Return what the panel shows of a cluster, as JSON."""
    if cluster is None:
        return None
    field_names = ("rank", "vm", "pid", "gpu", "nic", "state")
    return {
        "name": cluster.name,
        "state": cluster.state,
        "n": cluster.n,
        "message": cluster.message,
        "source": registry.source(cluster),
        "fabric": _calibrated(cluster.fabric),
        "ranks": [
            {name: encode(getattr(info, name)) for name in field_names} for info in cluster.ranks
        ],
    }
