"""A page that watches a kernel, without the browser."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import Any

import pytest
from jupyter_client.blocking import BlockingKernelClient

COMM_ID = "workbench-cluster"
WAIT_S = 120.0


class Page:
    """Talks to a kernel as a browser's page does, without the browser."""

    def __init__(self, client: BlockingKernelClient) -> None:
        self.client = client
        self.heard: list[dict[str, Any]] = []
        self.outputs: list[dict[str, Any]] = []
        self.ended: set[str] = set()
        self.subshell: str | None = None

    def use_subshell(self) -> None:
        """Make a subshell; requests travel on it from then on."""
        request = self.client.session.msg("create_subshell_request", {})
        self.client.control_channel.send(request)
        self.subshell = self.client.get_control_msg(timeout=WAIT_S)["content"]["subshell_id"]

    def ask(self, kind: str, **more: Any) -> None:
        """Send a request over the comm, without opening it."""
        content = {"comm_id": COMM_ID, "data": {"type": kind, **more}}
        message = self.client.session.msg("comm_msg", content)
        if self.subshell is not None:
            message["header"]["subshell_id"] = self.subshell
        self.client.shell_channel.send(message)

    def begin(self, code: str) -> str:
        """Start a cell; return its id."""
        return str(self.client.execute(code))

    def execute_aside(self, code: str) -> None:
        """Run code on the subshell, while a cell blocks the main shell."""
        content = {"code": code, "silent": True, "store_history": False, "user_expressions": {}}
        message = self.client.session.msg("execute_request", content)
        message["header"]["subshell_id"] = self.subshell
        self.client.shell_channel.send(message)

    def run(self, code: str) -> None:
        """Run a cell to its end."""
        cell = self.begin(code)
        self.wait(lambda: cell in self.ended, f"the end of {code!r}")

    def state(self) -> Any:
        """Return the cluster, as the kernel reported it last; wait for the first report."""
        self.wait(lambda: any(one["type"] == "state" for one in self.heard), "a state")
        return [one for one in self.heard if one["type"] == "state"][-1]["cluster"]

    def wait_for_state(self, state: str) -> dict[str, Any]:
        """Wait until the kernel reports a cluster in `state`; return it."""
        self.wait(
            lambda: any((one.get("cluster") or {}).get("state") == state for one in self.heard),
            f"a cluster that is {state}",
        )
        return next(
            one["cluster"]
            for one in self.heard
            if one["type"] == "state" and (one["cluster"] or {}).get("state") == state
        )

    def wait(self, done: Callable[[], bool], what: str) -> None:
        """Take messages until `done`."""
        until = time.monotonic() + WAIT_S
        while not done():
            if time.monotonic() > until:
                pytest.fail(f"waited in vain for {what}; heard {self.heard}, {self.outputs}")
            self._take()

    def _take(self) -> None:
        try:
            message = self.client.get_iopub_msg(timeout=0.2)
        except queue.Empty:
            return
        kind, content = message["msg_type"], message["content"]
        if kind == "comm_msg" and content["comm_id"] == COMM_ID:
            self.heard.append(content["data"])
        elif kind in {"stream", "error"}:
            self.outputs.append({"cell": message["parent_header"].get("msg_id"), **content})
        elif kind == "status" and content["execution_state"] == "idle":
            self.ended.add(message["parent_header"].get("msg_id", ""))
