"""What is looked at on every VM before its ranks start: what would abort them stops the start."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import psutil

from workbench.cluster.agent import Agent
from workbench.cluster.background import at_once
from workbench.cluster.network import Link
from workbench.doctor import diagnose_all
from workbench.errors import HorovodMissing, StartFailed
from workbench.resources import Snapshot

_SHM_BYTES = 64 << 20
_OPEN_FILES = 1024
_CLOCK_S = 1.0
_RANKS_PER_CORE = 8
_RANK_BYTES = 130 << 20
"""What a rank takes for itself in a small training: measured with PyTorch 2.13 on CPUs."""


@dataclass(frozen=True)
class Problem:
    """Something that is not as it should be on a VM.

    Attributes
    ----------
    vm
        Its name.
    fatal
        The ranks would fail: the start stops here.
    what, cure
        What was found, and what to do.
    """

    vm: str
    fatal: bool
    what: str
    cure: str

    @classmethod
    def of(cls, vm: str, error: StartFailed | HorovodMissing) -> Problem:
        """Return what keeps a VM from its ranks, as a start would tell it."""
        return cls(error.vm or vm, True, error.cause, error.cure)

    def failure(self) -> StartFailed:
        """Return what a start raises."""
        return StartFailed(self.what, vm=self.vm, cure=self.cure)


@dataclass(frozen=True)
class Preflight:
    """What was found on the VMs of a cluster, in the order of its hosts.

    Attributes
    ----------
    rows
        Per VM, by column name.
    problems
        The fatal ones first.
    """

    rows: list[dict[str, str]]
    problems: list[Problem]

    @property
    def fatal(self) -> list[Problem]:
        """The problems for which no rank is started."""
        return [problem for problem in self.problems if problem.fatal]


def look(agents: list[Agent], links: list[Link], slots: list[int]) -> Preflight:
    """Look at VMs whose agents have greeted; versions only once they have loaded.

    Parameters
    ----------
    links
        Where the VMs are to meet, in the order of `agents`.
    slots
        Ranks of each VM.
    """
    clocks = at_once(agents, _clock)
    problems = [
        *_reach(agents, links),
        *_alike(agents),
        *(
            found
            for agent, count in zip(agents, slots, strict=True)
            for found in _own(agent, count)
        ),
        *_clocks(agents, clocks),
        *_mtus(agents, links),
        *_unlike(agents),
    ]
    rows = [
        _row(agent, link, count) for agent, link, count in zip(agents, links, slots, strict=True)
    ]
    return Preflight(rows, sorted(problems, key=lambda problem: not problem.fatal))


def crowding(agent: Agent, slots: int) -> Iterable[str]:
    """Say where ranks would share cores, or want memory, so that their start may fail."""
    cores = len(agent.facts["cores"])
    if slots > _RANKS_PER_CORE * cores:
        yield (
            f"{agent.name}: {slots} ranks share {cores} cores, and may not be ready in time. "
            f"Start at most {_RANKS_PER_CORE * cores}, or raise start_timeout_s of wb.Cluster."
        )
    available = _available_bytes(agent)
    needed = slots * _RANK_BYTES
    if available is not None and needed > available:
        yield (
            f"{agent.name}: {slots} ranks need at least {needed / 2**30:.1f} GiB of memory, and "
            f"{available / 2**30:.1f} GiB are there. Start at most {available // _RANK_BYTES}."
        )


def _available_bytes(agent: Agent) -> int | None:
    """Return the memory that is free on this machine, or all that another VM has."""
    host = _snapshot(agent).host
    known = [x for x in (host.memory_bytes, host.memory_limit_bytes) if isinstance(x, int)]
    if agent.local:
        known.append(psutil.virtual_memory().available)
    return min(known, default=None)


def _snapshot(agent: Agent) -> Snapshot:
    return Snapshot.from_plain(agent.facts["snapshot"])


def _row(agent: Agent, link: Link, slots: int) -> dict[str, str]:
    snapshot = _snapshot(agent)
    nic = next((nic for nic in snapshot.nics if nic.name == link.interface), None)
    return {
        "VM": agent.name,
        "ranks": str(slots),
        "Python": str(agent.hello["python"]),
        "torch": str(agent.loaded.get("torch", "not loaded yet")),
        "Horovod": str(agent.loaded.get("horovod", "not loaded yet")),
        "GPUs": str(len(snapshot.gpus)) if snapshot.gpus else "none",
        "driver": ", ".join(sorted({str(gpu.driver_version) for gpu in snapshot.gpus})) or "none",
        "cores": str(len(agent.facts["cores"])),
        "interface": link.interface,
        "address": link.address,
        "MTU": str(nic.mtu) if nic else "65536",
        "RDMA": "yes" if nic and nic.kind == "rdma" else "no",
    }


def _reach(agents: list[Agent], links: list[Link]) -> Iterable[Problem]:
    """Every VM connects to every other one, over the links chosen."""
    if len(agents) == 1:
        return
    address = {id(agent): link.address for agent, link in zip(agents, links, strict=True)}
    servers = at_once(agents, lambda agent: agent.ask("listen", address=address[id(agent)]))
    for agent, server in zip(agents, servers, strict=True):
        if "error" in server:
            yield Problem(
                agent.name,
                True,
                f"cannot listen on {address[id(agent)]} ({server['error']})",
                "name the interface of the collectives for this host",
            )
            return

    def reach(agent: Agent) -> list[tuple[Agent, dict[str, Any]]]:
        others = [(o, s) for o, s in zip(agents, servers, strict=True) if o is not agent]
        targets = [
            (address[id(other)], server["port"], server["token"]) for other, server in others
        ]
        answers = agent.ask("reach", targets=targets, source=address[id(agent)])
        return [(other, answer) for (other, _), answer in zip(others, answers, strict=True)]

    for agent, results in zip(agents, at_once(agents, reach), strict=True):
        for other, answer in results:
            if "error" in answer:
                yield Problem(
                    agent.name,
                    True,
                    f"does not reach {other.name} at {address[id(other)]} from "
                    f"{address[id(agent)]} ({answer['error']})",
                    "open the ports between the VMs (ranks use any), or name another interface",
                )


def _alike(agents: list[Agent]) -> Iterable[Problem]:
    """What must be the same everywhere is."""
    for name, read in (
        ("Python", lambda agent: ".".join(str(agent.hello["python"]).split(".")[:2])),
        ("torch", lambda agent: agent.loaded.get("torch")),
        ("Horovod", lambda agent: agent.loaded.get("horovod")),
        ("CUDA", lambda agent: agent.loaded.get("cuda")),
    ):
        found = {agent.name: read(agent) for agent in agents}
        known = {value for value in found.values() if value is not None}
        if len(known) > 1:
            told = ", ".join(f"{vm} has {value or 'none'}" for vm, value in found.items())
            odd = _odd_one(found)
            yield Problem(
                odd, True, f"{name} differs ({told})", "install the same version on every VM"
            )


def _odd_one(values: dict[str, Any]) -> str:
    """Return the VM whose value is the rarest."""
    every = list(values.values())
    return min(values, key=lambda vm: (every.count(values[vm]), -list(values).index(vm)))


def _own(agent: Agent, slots: int) -> Iterable[Problem]:
    """What concerns one VM alone."""
    snapshot, name = _snapshot(agent), agent.name
    if snapshot.gpus and len(snapshot.gpus) < slots:
        yield Problem(
            name,
            True,
            f"too few GPUs for {slots} ranks: it has {len(snapshot.gpus)}",
            f"ask for {len(snapshot.gpus)} ranks there",
        )
    shm = snapshot.host.shm_bytes
    if isinstance(shm, int) and shm < _SHM_BYTES:
        yield Problem(
            name,
            False,
            f"shared memory has only {shm >> 20} MB",
            "DataLoader workers and NCCL need more: mount its tmpfs with size=8g or more",
        )
    memlock = snapshot.host.memlock_bytes
    if isinstance(memlock, int) and any(nic.kind == "rdma" for nic in snapshot.nics):
        yield Problem(
            name,
            False,
            f"locked memory is limited to {memlock >> 10} KB",
            "RDMA needs it unlimited: `* - memlock unlimited` in /etc/security/limits.conf",
        )
    files = agent.facts["open_files"]
    if 0 <= files < _OPEN_FILES:
        yield Problem(
            name,
            False,
            f"a process may open only {files} files",
            "raise it: `* - nofile 65536` in /etc/security/limits.conf",
        )


def _clock(agent: Agent) -> float:
    """Return how far the VM's clock is from this one's, in seconds."""
    began = time.time()
    told = float(agent.ask("clock"))
    return told - (began + time.time()) / 2


def _clocks(agents: list[Agent], offsets: list[float]) -> Iterable[Problem]:
    for agent, offset in zip(agents, offsets, strict=True):
        if abs(offset) > _CLOCK_S:
            yield Problem(
                agent.name,
                False,
                f"its clock is {offset:+.1f} s off this machine's",
                "let chrony or systemd-timesyncd set it",
            )


def _mtus(agents: list[Agent], links: list[Link]) -> Iterable[Problem]:
    """The links are alike; of RDMA ports the doctor says so."""
    found = {}
    for agent, link in zip(agents, links, strict=True):
        nic = next((nic for nic in _snapshot(agent).nics if nic.name == link.interface), None)
        if nic is not None and nic.kind != "rdma" and isinstance(nic.mtu, int):
            found[agent.name] = nic.mtu
    if len(set(found.values())) > 1:
        told = ", ".join(f"{vm} has {mtu}" for vm, mtu in found.items())
        yield Problem(
            _odd_one(found),
            False,
            f"MTU differs ({told})",
            "set the same on all (ip link set dev ... mtu ...): larger frames would be lost",
        )


def _unlike(agents: list[Agent]) -> Iterable[Problem]:
    """What the doctor finds in the VMs' hardware beside each other."""
    for found in diagnose_all({agent.name: _snapshot(agent) for agent in agents}):
        if found.severity != "info":
            fatal = found.rule == "gpus_unlike" and found.severity == "error"
            yield Problem(found.subject, fatal, found.evidence, found.cure)
