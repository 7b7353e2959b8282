"""Tells the panel of the VMs of a cluster, as long as somebody looks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from workbench.doctor import diagnose_all
from workbench.resources.codec import encode
from workbench.widgets.vm_views import WAIT_S, VmView

if TYPE_CHECKING:
    from workbench.cluster.agent import Agent

LAPSE_S = 12.0
"""The panel asks again every four seconds; without that it is gone."""

_PERIOD_S = 1.0
_OFF = float("-inf")
_AGAIN_S = 3.0
"""Period of the VMs' descriptions while a cell runs: a page that is reloaded
meanwhile can listen but cannot ask, and shows no devices until one arrives.
A description has about 12 kB per VM."""


class VmWatch:
    """A thread while it is watched; none otherwise.

    Parameters
    ----------
    send
        Sends a message to the panel, from any thread.
    agents
        Gives the agents of the cluster's VMs; none where there is no cluster.
    cell_runs
        Whether a cell runs now.
    """

    def __init__(
        self,
        send: Callable[[dict[str, Any]], None],
        agents: Callable[[], Sequence[Agent]],
        cell_runs: Callable[[], bool],
    ) -> None:
        self._send = send
        self._agents = agents
        self._cell_runs = cell_runs
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._until = _OFF
        self._views: list[VmView] = []
        self._told: dict[str, Any] | None = None
        self._told_at = float("-inf")
        self._trouble = ""

    # asked for, in any thread

    def renew(self) -> None:
        """Watch, or go on to watch."""
        with self._lock:
            if self._until == _OFF:
                self._told = None  # whoever watches now has not heard it
            self._until = time.monotonic() + LAPSE_S
            if self._thread is None:
                self._wake.clear()
                self._thread = threading.Thread(target=self._run, name="workbench-vms", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Watch no longer."""
        with self._lock:
            self._until = _OFF
        self._wake.set()

    def tell_again(self) -> None:
        """Tell a page that has just come what is known, and have all VMs looked at anew."""
        self._told = None
        for view in list(self._views):
            view.look()
        self._wake.set()

    # the thread

    def _run(self) -> None:
        due = time.monotonic()
        while self._goes_on():
            try:
                self._tick()
            except Exception as error:  # noqa: BLE001 - one that fails must not end the watch
                self._complain(f"the VMs cannot be told of: {type(error).__name__}: {error}")
            due = max(due + _PERIOD_S, time.monotonic())
            if self._wake.wait(due - time.monotonic()):
                self._wake.clear()
                due = time.monotonic()

    def _goes_on(self) -> bool:
        with self._lock:
            now = time.monotonic()
            if self._until != _OFF and self._cell_runs():
                self._until = max(self._until, now + LAPSE_S)
            if now < self._until:
                return True
            self._thread = None
            self._views, self._told = [], None
            return False

    def _tick(self) -> None:
        began = time.monotonic()
        changed = self._follow(self._agents())
        others = [view for view in self._views if not view.local]
        for view in others:
            view.ask()
        if self._told is None:  # the first time, what the VMs have now is worth a moment
            for view in self._views:
                view.wait(began + WAIT_S)
        for view in self._views:
            changed |= view.update()
        self._tell_vms(changed)
        samples = {view.name: view.sample(began + WAIT_S) for view in others}
        if samples:
            self._send({"type": "samples", "samples": samples})

    def _follow(self, agents: Sequence[Agent]) -> bool:
        """Have a view for each agent that there is now; whether they are others than before."""
        if [view.agent for view in self._views] == list(agents):
            return False
        before = {view.agent: view for view in self._views}
        self._views = [before.get(agent) or VmView(agent) for agent in agents]
        return True

    def _tell_vms(self, changed: bool) -> None:
        now, message = time.monotonic(), self._told
        if changed or message is None:
            message = {"type": "vms", **describe(self._views)}
        elif not (self._views and self._cell_runs() and now - self._told_at >= _AGAIN_S):
            return
        self._told, self._told_at = message, now
        self._send(message)

    def _complain(self, text: str) -> None:
        if text != self._trouble:
            self._trouble = text
            self._send({"type": "error", "message": text})


def describe(views: Sequence[VmView]) -> dict[str, Any]:
    """Return the VMs, and what is found across them, as plain JSON."""
    known = {v.name: v.snapshot for v in views if v.snapshot is not None and not v.lost}
    return {"vms": [view.to_plain() for view in views], "findings": encode(diagnose_all(known))}
