"""A launcher of engines for ipyparallel: ``ipp.Cluster(engines="workbench", ...)``.

It is for users who start clusters with ipyparallel or its JupyterLab sidebar. It needs one ssh
connection per VM, which also carries the connection information of the engines.
"""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

from ipyparallel.cluster.launcher import EngineLauncher
from traitlets import Float, Unicode

from workbench.cluster.agent import Agent
from workbench.cluster.launchers import FOR_HOSTS, create
from workbench.cluster.options import checked_ssh_config
from workbench.cluster.threads import run_concurrently
from workbench.errors import StartFailed, UsageError
from workbench.hosts import parse_hosts, total_slots
from workbench.wire.agent_messages import SignalRanks
from workbench.wire.connection_file import wait_until_complete

_POLL_S = 0.05


class WorkbenchEngineSetLauncher(EngineLauncher):
    """Starts engines on this machine, or on the VMs of `hosts`."""

    hosts = Unicode("", help="VMs and their engines: vm1:2,vm2:2, or a host file").tag(config=True)
    ssh_config = Unicode("", help="an ssh client configuration of its own").tag(config=True)
    timeout = Float(60.0, help="seconds until all VMs must have started").tag(config=True)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._agents: list[Agent] = []
        self._stopping = False

    def find_args(self) -> list[str]:
        """Return the command for ipyparallel's log."""
        return ["workbench.agent.program", self.hosts or "this machine"]

    async def start(self, n: int) -> Any:
        """Start n engines. If hosts are named, n must be the number of their slots."""
        hosts = parse_hosts(self.hosts) if self.hosts else None
        if hosts is not None and total_slots(hosts) != n:
            raise UsageError(
                f"{n} engines: hosts {self.hosts} have {total_slots(hosts)} slots. "
                "Give both the same number."
            )
        if hosts is None:
            self._agents = [Agent(None, n)]
        else:
            config = checked_ssh_config(self.ssh_config) if self.ssh_config else None
            launcher = create(FOR_HOSTS, config)
            self._agents = [Agent(host, host.slots, launcher) for host in hosts]
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, self._start_all, n)
        except BaseException:
            run_concurrently(self._agents, Agent.close)
            raise
        threading.Thread(target=self._notify_when_ended, args=(loop,), daemon=True).start()
        return self.notify_start({"n": n})

    def _start_all(self, n: int) -> None:
        """Start all engines, and wait until they run."""
        deadline = time.monotonic() + self.timeout
        connection = self._read_connection(deadline)
        for agent in self._agents:
            agent.wait_until_greeted(deadline)
            self.log.info(f"{agent.name}: answers, loads PyTorch")
        for agent in self._agents:
            agent.wait_until_loaded(deadline)
            slots = agent.host.slots if agent.host else n
            for slot in range(slots):
                agent.start(slot, connection=connection, environment=self.get_env(), cores=[])
            for slot in range(slots):
                agent.wait_until_started(slot, deadline)
            self.log.info(f"{agent.name}: {slots} engines started")

    def _read_connection(self, deadline: float) -> dict[str, Any]:
        """Wait for the controller's connection file, and return its content."""
        path = Path(self.connection_files["engine"])
        if not wait_until_complete(path, max(0.0, deadline - time.monotonic())):
            raise StartFailed(f"the controller has written no {path}: is it running?")
        connection: dict[str, Any] = json.loads(path.read_text())
        return connection

    def _notify_when_ended(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tell ipyparallel when all engines have ended."""
        while not all(agent.lost for agent in self._agents):
            time.sleep(_POLL_S)
        if not self._stopping:
            loop.call_soon_threadsafe(self.notify_stop, {"exit_code": 0})

    async def stop(self) -> Any:
        """End every engine, and all processes that it has forked."""
        self._stopping = True
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, run_concurrently, self._agents, Agent.close)
        return self.notify_stop({"exit_code": 0})

    def signal(self, sig: int | str) -> None:
        """Send a signal to every engine."""
        number = sig if isinstance(sig, int) else signal.Signals[f"SIG{sig.removeprefix('SIG')}"]
        for agent in self._agents:
            agent.send(SignalRanks(int(number)))

    async def join(self, timeout: float | None = None) -> None:
        """Wait until every engine has ended."""
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        while self.state == "running" and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)
