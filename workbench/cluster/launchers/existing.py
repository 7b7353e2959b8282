"""The launcher for clusters that ipyparallel has started, by any of its own launchers.

An engine there is the way onto its machine: it starts an agent, which forks a rank for each of
the engines of its job there. The agent connects to the kernel (`workbench.agent.tunnel`), as the
ranks do. Engines and controller are left as they are; the agent ends with the last of its engines.
"""

from __future__ import annotations

import json
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

_PROGRAM = "workbench.agent.tunnel"
_RETRY_S = 2.0
_OF_LIMIT = 0.9
"""An engine gives up the start of an agent before this kernel does, and says so."""


class ExistingLauncher(RelayLauncher):
    """Starts agents through engines, and waits for their connections."""

    allocates = True
    has_slots = True

    def __init__(self, config: Path | None = None, arguments: tuple[str, ...] = ()) -> None:
        super().__init__(config, arguments)
        self._cluster: ForeignCluster | None = None
        self._known: dict[int, ForeignEngine] = {}
        self._taken: dict[str, Any] = {}
        """What another kernel needs to attach: as `allocate` and `launch` have filled it."""
        self._errors: dict[str, StartFailed] = {}
        self._stopped = threading.Event()

    # the engines

    def allocate(self, options: Options, progress: Callable[[str], None]) -> Options:
        """See `Launcher`. Waits for n engines, or the first, until `start_timeout_s`."""
        if options.allocation is not None:
            self._taken = cast("dict[str, Any]", options.allocation)
            return options
        deadline = time.monotonic() + options.start_timeout_s
        file = connection_file(options.job)
        name = options.job.get("profile", "default")
        source = str(file) if "connection_file" in options.job else f"profile {name!r}"
        public, secret = (key.decode() for key in zmq.curve_keypair())
        self._taken = {"file": str(file), "source": source, "public": public, "secret": secret}
        self._taken |= {"hosts": {}, "tunnels": {}, "address": "", "n": options.n}
        cluster = self._connected()
        cluster.wait_for_engines(options.n, deadline, progress, self._stopped)
        progress(f"waiting until engines of {source} have time")
        self._describe(cluster.engines, options.n, deadline, self._stopped)
        hosts = self._group(self._known)
        n = options.n or len(self._known)
        return replace(options, n=n, hosts=hosts, allocation=self._taken)

    def _connected(self) -> ForeignCluster:
        if self._cluster is None:
            self._cluster = ForeignCluster(Path(self._taken["file"]), self._taken["source"])
        cluster = self._cluster
        if self._stopped.is_set():  # while it connected
            self.release()
            raise StartFailed("interrupted")
        return cluster

    def _describe(
        self, engines: Iterable[int], enough: int, deadline: float, stop: threading.Event
    ) -> None:
        """Have engines describe themselves, and check what only this kernel can."""
        unknown = set(engines) - set(self._known)
        if not unknown:
            return
        found = self._connected().describe(unknown, enough, deadline, stop)
        for number, plain in sorted(found.items()):
            where = f"engine {number} of {self._taken['source']} on {plain['host']}"
            version = plain.pop("version")
            if version != __version__:
                raise StartFailed(
                    f"gradient-workbench {version} is installed there ({plain['executable']}), and "
                    f"{__version__} here",
                    vm=where,
                    cure="install the same version, and start its engines again",
                )
            engine = ForeignEngine(**plain)
            if engine.python.split(".")[:2] != platform.python_version().split(".")[:2]:
                raise StartFailed(
                    f"Python {engine.python} runs there ({engine.executable}), and Python "
                    f"{platform.python_version()} here",
                    vm=where,
                    cure="start its engines with the same version",
                )
            if not engine.routes:
                raise StartFailed(
                    "it does not reach any address of this machine, to which ranks connect",
                    vm=where,
                    cure="open the firewall between both, for any port",
                )
            self._known[number] = engine

    def _group(self, engines: dict[int, ForeignEngine]) -> tuple[Host, ...]:
        """Return a host for each job on a machine; ranks and jobs in the order of engines."""
        groups: dict[tuple[str, str, str], list[int]] = {}
        for number, engine in sorted(engines.items()):
            groups.setdefault((engine.host, engine.job, engine.executable), []).append(number)
        address = self._choose_address(engines)
        hosts: list[Host] = []
        for (name, _, executable), numbers in groups.items():
            same = sum(host.name == name for host in hosts)
            alias = f"{name} ({same + 1})" if same else None
            host = Host(name, len(numbers), python=executable, alias=alias)
            route = f"{address} 0 {engines[numbers[0]].routes[address]} 0" if address else ""
            self._taken["hosts"][host.shown] = {"engines": numbers, "route": route}
            hosts.append(host)
        return tuple(hosts)

    def _choose_address(self, engines: dict[int, ForeignEngine]) -> str:
        """Choose an address of this machine; return it, or nothing if all engines are here."""
        here = machine_identity()
        if not isinstance(here, Unknown) and {one.machine for one in engines.values()} == {here}:
            self._taken["address"] = "127.0.0.1"
            return ""
        every = [one.routes for one in engines.values()]
        common = [address for address in every[0] if all(address in routes for routes in every)]
        if not common:
            said = ", ".join(f"{one.host}: {' '.join(one.routes)}" for one in engines.values())
            raise StartFailed(
                f"no address of this machine is reached by all engines ({said})",
                cure="connect all machines to one network",
            )
        self._taken["address"] = common[0]
        return common[0]

    def why_gone(self, host: Host | None) -> str:
        """See `Launcher`."""
        if host is None or self._cluster is None:
            return ""  # not known
        left = self._cluster.engines & set(self._engines_of(host))
        return "" if left else self._ended(host)

    def _engines_of(self, host: Host) -> list[int]:
        numbers: list[int] = self._taken["hosts"][host.shown]["engines"]
        return numbers

    def _ended(self, host: Host) -> str:
        numbers = self._engines_of(host)
        words = ("engine", "has") if len(numbers) == 1 else ("engines", "have")
        return f"ipyparallel's {words[0]} {ranks_text(numbers)} on {host.shown} {words[1]} ended"

    def describe(self) -> str:
        """See `Launcher`."""
        return f"ipyparallel's engines of {self._taken['source']}" if self._taken else ""

    def release(self) -> None:
        """See `Launcher`; the engines and their controller go on."""
        self._stopped.set()
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()
        self._known.clear()

    # the agents

    def launch(
        self,
        agents: Sequence[AgentStart],
        grace_s: float,
        deadline: float,
        interrupted: threading.Event,
    ) -> None:
        """Start these agents through an engine each; see `Launcher`."""
        cluster = self._connected()
        calls: dict[int, str] = {}
        started: dict[int, AgentStart] = {}
        for agent in agents:
            host = _of(agent)
            self._errors.pop(host.shown, None)
            engines = self._live(host, deadline, interrupted)
            if not engines:
                self._errors[host.shown] = StartFailed(
                    f"{self._ended(host)}, and no others are registered from there. Start some",
                    vm=host.shown,
                    cure="then restart the lost ranks",
                )
                continue
            given = self._given(host, agent.folder) | {"grace_s": grace_s}
            given["first_s"] = first_s(deadline)
            limit_s = _OF_LIMIT * max(deadline - time.monotonic(), 0)
            calls[engines[0]] = f"start({given!r}, {limit_s})"
            started[engines[0]] = agent
        for number, said in cluster.call(calls, deadline, interrupted).items():
            host = _of(started[number])
            if isinstance(said, str) and said.startswith("ready "):
                self._taken["tunnels"][str(started[number].folder)].append(said.split()[1])
                continue
            del started[number]
            self._errors[host.shown] = (
                said if isinstance(said, StartFailed) else _start_failure(host, said)
            )
        gives = {}
        for agent in started.values():
            host, cores = _of(agent), self._cores(_of(agent))
            engines = self._engines_of(host)[: agent.slots]
            for first, number in enumerate(engines):  # with fewer engines, several ranks use one's
                slots = list(range(first, agent.slots, len(engines)))
                gives[number] = host, f"give({str(agent.folder)!r}, {slots}, {cores!r})"
        expressions = {number: text for number, (_, text) in gives.items()}
        for number, error in cluster.call(expressions, deadline, interrupted).items():
            if isinstance(error, StartFailed):
                self._errors[gives[number][0].shown] = error

    def _live(self, host: Host, deadline: float, interrupted: threading.Event) -> list[int]:
        """Return the engines of a host that run, or those that have taken their place."""
        cluster, taken = self._connected(), self._taken["hosts"]
        found = [number for number in self._engines_of(host) if number in cluster.engines]
        if found:
            self._describe(found, 0, deadline, interrupted)
        else:
            new = cluster.engines - {number for one in taken.values() for number in one["engines"]}
            self._describe(new, 0, deadline, interrupted)
            place = (host.name, host.python)
            known = {number: self._known[number] for number in sorted(new)}
            found = [n for n, one in known.items() if (one.host, one.executable) == place]
        if found:
            taken[host.shown]["engines"] = found
        return found

    def _cores(self, host: Host) -> list[int]:
        """Return the cores on which any engine of a host may run."""
        return sorted({core for n in self._engines_of(host) for core in self._known[n].cores})

    def _given(self, host: Host, folder: Path) -> dict[str, Any]:
        """Return what `workbench.agent.tunnel` reads on the agent's machine."""
        engines = [self._known[number] for number in self._engines_of(host)]
        port = free_port(self._taken["address"])
        self._taken["tunnels"][str(folder)] = [str(port)]
        self._taken["hosts"][host.shown]["port"] = port
        gpus = {one.gpus for one in engines}
        named = [name for text in gpus for name in (text or "").split(",") if name]
        environment = {
            "SSH_CONNECTION": self._taken["hosts"][host.shown]["route"],
            "CUDA_VISIBLE_DEVICES": None if None in gpus else ",".join(dict.fromkeys(named)),
            GIVEN_GPUS: None if None in gpus else "1",
        }
        return {
            "folder": str(folder),
            "cores": self._cores(host),
            "environment": environment,
            "engines": [(one.pid, one.began) for one in engines],
            "why": self._ended(host),
            "endpoint": f"tcp://{self._taken['address']}:{port}",
            "server_key": self._taken["public"],
        }

    def start(self, host: Host | None, folder: Path, grace_s: float, **_: Any) -> Connection:
        """Wait for the agent that `launch` has started; see `Launcher`."""
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
        """See `RelayLauncher`; the program is the relay, in whose place the tunnel is run."""
        tunnel = self._taken["tunnels"][program[-1]]
        return [sys.executable, "-m", _PROGRAM, *tunnel, str(patience_s)]

    def environment(self) -> dict[str, str]:
        """See `RelayLauncher`."""
        names = ("address", "public", "secret")
        return os.environ | {TUNNEL: json.dumps({name: self._taken[name] for name in names})}

    def failure(self, host: Host | None, _: int | None, said: str) -> StartFailed:
        """See `Launcher`."""
        assert host is not None
        if host.shown in self._errors:
            return self._errors[host.shown]
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        port = self._taken["hosts"][host.shown].get("port")
        cause = self.why_gone(host) or f"its agent has not connected to port {port} here in time"
        cure = "check the log of its engines, and that its machine reaches that port (firewall)"
        return StartFailed(cause + (f" ({lines[-1]})" if lines else ""), vm=host.shown, cure=cure)


def _of(agent: AgentStart) -> Host:
    assert agent.host is not None
    return agent.host


def _start_failure(host: Host, said: str | None) -> StartFailed:
    if said is None:
        return StartFailed(
            "its agent has not started in time: its Python or its file system is slow",
            vm=host.shown,
            cure="start again with a higher start_timeout_s",
        )
    cause, cure = python_failure(None, said, host.python or "its Python") or (
        f"its agent cannot be started ({said.splitlines()[-1] if said else 'no output'})",
        "correct that on its machine, where engines start the agent",
    )
    return StartFailed(cause, vm=host.shown, cure=cure)
