"""The launcher for clusters that ipyparallel has started with any of ipyparallel's launchers.

This launcher reaches a VM through the engines there: one engine starts an agent, which forks a
rank for each engine of the job on this VM. The agent and the ranks connect to the kernel
(`workbench.agent.tunnel`). Engines and controller keep running. The agent ends when all
of its engines have ended.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import zmq

from workbench._version import __version__
from workbench.cluster.launchers import (
    AgentStart,
    Connection,
    RelayLauncher,
    first_s,
    python_failure,
)
from workbench.cluster.launchers.foreign_cluster import (
    ForeignCluster,
    connection_file,
    free_port,
)
from workbench.cluster.options import Options
from workbench.errors import StartFailed
from workbench.hosts import Host
from workbench.ranks import ranks_text
from workbench.resources import Unknown
from workbench.resources.host.machine import machine_identity
from workbench.wire.foreign_engine import GIVEN_GPUS, TUNNEL, ForeignEngine

_log = logging.getLogger(__name__)

_PROGRAM = "workbench.agent.tunnel"
_RETRY_S = 2.0
_ENGINE_LIMIT_FACTOR = 0.9
"""An engine gives up starting an agent after this part of the kernel's own time limit.

The engine can therefore report the failure before the kernel gives up.
"""


class ExistingLauncher(RelayLauncher):
    """Starts agents through engines, and waits until the agents connect."""

    allocates = True
    has_slots = True

    def __init__(self, config: Path | None = None, arguments: tuple[str, ...] = ()) -> None:
        super().__init__(config, arguments)
        self._cluster: ForeignCluster | None = None
        self._engines_by_number: dict[int, ForeignEngine] = {}
        self._saved: dict[str, Any] = {}
        """The data that another kernel needs to attach; `allocate` and `launch` fill it."""
        self._errors: dict[str, StartFailed] = {}
        self._stopped = threading.Event()

    # Methods for the engines.

    def allocate(self, options: Options, progress: Callable[[str], None]) -> Options:
        """Wait for n engines (for one if n is 0), at most `start_timeout_s`. See `Launcher`."""
        if options.allocation is not None:
            self._saved = cast("dict[str, Any]", options.allocation)
            return options
        deadline = time.monotonic() + options.start_timeout_s
        file = connection_file(options.job)
        name = options.job.get("profile", "default")
        source = str(file) if "connection_file" in options.job else f"profile {name!r}"
        public, secret = (key.decode() for key in zmq.curve_keypair())
        self._saved = {"file": str(file), "source": source, "public": public, "secret": secret}
        self._saved |= {"hosts": {}, "tunnels": {}, "address": "", "n": options.n}
        cluster = self._connect()
        cluster.wait_for_engines(options.n, deadline, progress, self._stopped)
        progress(f"waiting until engines of {source} have time")
        self._describe_engines(cluster.engines, options.n, deadline, self._stopped)
        hosts = self._group_by_job(self._engines_by_number)
        n = options.n or len(self._engines_by_number)
        return replace(options, n=n, hosts=hosts, allocation=self._saved)

    def _connect(self) -> ForeignCluster:
        """Return the client of the cluster; connect if that has not happened yet."""
        if self._cluster is None:
            self._cluster = ForeignCluster(Path(self._saved["file"]), self._saved["source"])
        cluster = self._cluster
        if self._stopped.is_set():  # another thread called `release` during the connection
            self.release()
            raise StartFailed("interrupted")
        return cluster

    def _describe_engines(
        self, engines: Iterable[int], enough: int, deadline: float, stop: threading.Event
    ) -> None:
        """Make engines describe themselves, and check their versions and routes.

        Parameters
        ----------
        engines
            The numbers of the engines. Engines that are already described are skipped.
        enough
            See `ForeignCluster.describe`.
        deadline
            The time at which to give up, on the clock of `time.monotonic`.
        stop
            An event: if it is set, give up at once.

        Raises
        ------
        StartFailed
            An engine does not answer, has another version, or cannot connect to this machine.
        """
        new_engines = set(engines) - set(self._engines_by_number)
        if not new_engines:
            return
        descriptions = self._connect().describe(new_engines, enough, deadline, stop)
        for number, fields in sorted(descriptions.items()):
            location = f"engine {number} of {self._saved['source']} on {fields['host']}"
            version = fields.pop("version")
            if version != __version__:
                raise StartFailed(
                    f"gradient-workbench {version} is installed there ({fields['executable']}), "
                    f"and {__version__} here",
                    vm=location,
                    fix="install the same version, and start its engines again",
                )
            engine = ForeignEngine(**fields)
            if engine.python.split(".")[:2] != platform.python_version().split(".")[:2]:
                raise StartFailed(
                    f"Python {engine.python} runs there ({engine.executable}), and Python "
                    f"{platform.python_version()} here",
                    vm=location,
                    fix="start its engines with the same version",
                )
            if not engine.routes:
                raise StartFailed(
                    "it does not reach any address of this machine, to which ranks connect",
                    vm=location,
                    fix="open the firewall between both, for any port",
                )
            self._engines_by_number[number] = engine

    def _group_by_job(self, engines: dict[int, ForeignEngine]) -> tuple[Host, ...]:
        """Return a host for each job on a VM, in the order of the engines' numbers."""
        groups: dict[tuple[str, str, str], list[int]] = {}
        for number, engine in sorted(engines.items()):
            groups.setdefault((engine.host, engine.job, engine.executable), []).append(number)
        address = self._choose_address(engines)
        hosts: list[Host] = []
        for (name, _, executable), numbers in groups.items():
            hosts_of_name = sum(host.name == name for host in hosts)
            alias = f"{name} ({hosts_of_name + 1})" if hosts_of_name else None
            host = Host(name, len(numbers), python=executable, alias=alias)
            route = f"{address} 0 {engines[numbers[0]].routes[address]} 0" if address else ""
            self._saved["hosts"][host.shown] = {"engines": numbers, "route": route}
            hosts.append(host)
        return tuple(hosts)

    def _choose_address(self, engines: dict[int, ForeignEngine]) -> str:
        """Choose an address of this machine that all engines can reach.

        Return the address; empty if all engines run on this machine.
        """
        this_machine = machine_identity()
        machines = {engine.machine for engine in engines.values()}
        if not isinstance(this_machine, Unknown) and machines == {this_machine}:
            self._saved["address"] = "127.0.0.1"
            return ""
        all_routes = [engine.routes for engine in engines.values()]
        common = [
            address for address in all_routes[0] if all(address in routes for routes in all_routes)
        ]
        if not common:
            routes_text = ", ".join(
                f"{engine.host}: {' '.join(engine.routes)}" for engine in engines.values()
            )
            raise StartFailed(
                f"no address of this machine is reached by all engines ({routes_text})",
                fix="connect all machines to one network",
            )
        self._saved["address"] = common[0]
        return common[0]

    def unavailable_reason(self, host: Host | None) -> str:
        """See `Launcher`."""
        if host is None or self._cluster is None:
            return ""  # unknown
        running_engines = self._cluster.engines & set(self._engines_of(host))
        return "" if running_engines else self._ended_text(host)

    def _engines_of(self, host: Host) -> list[int]:
        numbers: list[int] = self._saved["hosts"][host.shown]["engines"]
        return numbers

    def _ended_text(self, host: Host) -> str:
        """Return the reason why a host cannot be used: all its engines have ended."""
        numbers = self._engines_of(host)
        words = ("engine", "has") if len(numbers) == 1 else ("engines", "have")
        return f"ipyparallel's {words[0]} {ranks_text(numbers)} on {host.shown} {words[1]} ended"

    def describe(self) -> str:
        """See `Launcher`."""
        return f"ipyparallel's engines of {self._saved['source']}" if self._saved else ""

    def release(self) -> None:
        """Disconnect from the cluster, which keeps running. See `Launcher`."""
        self._stopped.set()
        cluster = self._cluster
        self._cluster = None
        if cluster is not None:
            cluster.close()
        self._engines_by_number.clear()

    # Methods for the agents.

    def launch(
        self,
        agents: Sequence[AgentStart],
        grace_s: float,
        deadline: float,
        interrupted: threading.Event,
    ) -> None:
        """Start each of these agents through an engine. See `Launcher`."""
        cluster = self._connect()
        calls: dict[int, str] = {}
        started: dict[int, AgentStart] = {}
        for agent in agents:
            host = _host_of(agent)
            self._errors.pop(host.shown, None)
            engines = self._live_engines(host, deadline, interrupted)
            if not engines:
                self._errors[host.shown] = StartFailed(
                    f"{self._ended_text(host)}, and no others are registered from there. "
                    "Start some",
                    vm=host.shown,
                    fix="then restart the lost ranks",
                )
                continue
            settings = self._tunnel_settings(host, agent.folder) | {"grace_s": grace_s}
            settings["first_s"] = first_s(deadline)
            limit_s = _ENGINE_LIMIT_FACTOR * max(deadline - time.monotonic(), 0)
            calls[engines[0]] = f"start({settings!r}, {limit_s})"
            started[engines[0]] = agent
        _log.info("Starting %d agents through engines %s", len(calls), sorted(calls))
        for number, answer in cluster.call(calls, deadline, interrupted).items():
            host = _host_of(started[number])
            if isinstance(answer, str) and answer.startswith("ready "):
                self._saved["tunnels"][str(started[number].folder)].append(answer.split()[1])
                continue
            del started[number]
            self._errors[host.shown] = (
                answer if isinstance(answer, StartFailed) else _start_failure(host, answer)
            )
        self._share_resources(cluster, started.values(), deadline, interrupted)

    def _share_resources(
        self,
        cluster: ForeignCluster,
        agents: Iterable[AgentStart],
        deadline: float,
        interrupted: threading.Event,
    ) -> None:
        """Make engines write their variables and cores to the folders of the agents."""
        calls: dict[int, tuple[Host, str]] = {}
        for agent in agents:
            host = _host_of(agent)
            cores = self._cores_of(host)
            engines = self._engines_of(host)[: agent.slots]
            # If there are fewer engines than ranks, several ranks share the resources of an engine.
            for first, number in enumerate(engines):
                slots = list(range(first, agent.slots, len(engines)))
                calls[number] = host, f"give({str(agent.folder)!r}, {slots}, {cores!r})"
        expressions = {number: expression for number, (_, expression) in calls.items()}
        for number, error in cluster.call(expressions, deadline, interrupted).items():
            if isinstance(error, StartFailed):
                self._errors[calls[number][0].shown] = error

    def _live_engines(self, host: Host, deadline: float, interrupted: threading.Event) -> list[int]:
        """Return the running engines of a host, or new engines that replace them."""
        cluster = self._connect()
        saved_hosts = self._saved["hosts"]
        live_engines = [number for number in self._engines_of(host) if number in cluster.engines]
        if live_engines:
            self._describe_engines(live_engines, 0, deadline, interrupted)
        else:
            new_engines = cluster.engines - {
                number for saved_host in saved_hosts.values() for number in saved_host["engines"]
            }
            self._describe_engines(new_engines, 0, deadline, interrupted)
            engines = {number: self._engines_by_number[number] for number in sorted(new_engines)}
            live_engines = [
                number
                for number, engine in engines.items()
                if (engine.host, engine.executable) == (host.name, host.python)
            ]
        if live_engines:
            saved_hosts[host.shown]["engines"] = live_engines
        return live_engines

    def _cores_of(self, host: Host) -> list[int]:
        """Return the cores that at least one engine of a host may use."""
        engines = (self._engines_by_number[number] for number in self._engines_of(host))
        return sorted({core for engine in engines for core in engine.cores})

    def _tunnel_settings(self, host: Host, folder: Path) -> dict[str, Any]:
        """Return the input of `workbench.agent.tunnel` on the agent's VM."""
        engines = [self._engines_by_number[number] for number in self._engines_of(host)]
        port = free_port(self._saved["address"])
        self._saved["tunnels"][str(folder)] = [str(port)]
        self._saved["hosts"][host.shown]["port"] = port
        gpus = {engine.gpus for engine in engines}
        gpu_names = [name for names in gpus for name in (names or "").split(",") if name]
        environment = {
            "SSH_CONNECTION": self._saved["hosts"][host.shown]["route"],
            "CUDA_VISIBLE_DEVICES": None if None in gpus else ",".join(dict.fromkeys(gpu_names)),
            GIVEN_GPUS: None if None in gpus else "1",
        }
        return {
            "folder": str(folder),
            "cores": self._cores_of(host),
            "environment": environment,
            "engines": [(engine.pid, engine.began) for engine in engines],
            "why": self._ended_text(host),
            "endpoint": f"tcp://{self._saved['address']}:{port}",
            "server_key": self._saved["public"],
        }

    def start(self, host: Host | None, folder: Path, grace_s: float, **_: Any) -> Connection:
        """Wait for the connection of the agent that `launch` has started. See `Launcher`."""
        assert host is not None
        if host.shown in self._errors:
            ours, theirs = socket.socketpair()
            theirs.close()
            return Connection(ours)
        return self._run(host, [str(folder)], grace_s)

    def attach(self, host: Host | None, folder: Path, patience_s: float) -> Connection:
        """See `Launcher`."""
        return self._run(host, [str(folder)], min(_RETRY_S, patience_s))

    def command(self, _: Host, program: list[str], patience_s: float | None) -> list[str]:
        """Return the command of the tunnel, which replaces the relay. See `RelayLauncher`."""
        tunnel = self._saved["tunnels"][program[-1]]
        return [sys.executable, "-m", _PROGRAM, *tunnel, str(patience_s)]

    def environment(self) -> dict[str, str]:
        """See `RelayLauncher`."""
        names = ("address", "public", "secret")
        return os.environ | {TUNNEL: json.dumps({name: self._saved[name] for name in names})}

    def failure(self, host: Host | None, _: int | None, output: str) -> StartFailed:
        """See `Launcher`."""
        assert host is not None
        if host.shown in self._errors:
            return self._errors[host.shown]
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        port = self._saved["hosts"][host.shown].get("port")
        cause = (
            self.unavailable_reason(host)
            or f"its agent has not connected to port {port} here in time"
        )
        fix = "check the log of its engines, and that its machine reaches that port (firewall)"
        return StartFailed(cause + (f" ({lines[-1]})" if lines else ""), vm=host.shown, fix=fix)


def _host_of(agent: AgentStart) -> Host:
    """Return the host of an agent, which has one because this launcher chose it."""
    assert agent.host is not None
    return agent.host


def _start_failure(host: Host, output: str | None) -> StartFailed:
    """Return the error about an engine that has not started its agent, from its output."""
    if output is None:
        return StartFailed(
            "its agent has not started in time: its Python or its file system is slow",
            vm=host.shown,
            fix="start again with a higher start_timeout_s",
        )
    cause, fix = python_failure(None, output, host.python or "its Python") or (
        f"its agent cannot be started ({output.splitlines()[-1] if output else 'no output'})",
        "correct that on its machine, where engines start the agent",
    )
    return StartFailed(cause, vm=host.shown, fix=fix)
