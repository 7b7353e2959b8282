"""What is checked on every VM before its ranks start: what would abort them stops the start."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import psutil

from workbench.cluster.agent import Agent
from workbench.cluster.background import at_once
from workbench.cluster.network import Link
from workbench.cluster.placement import link_layer, snapshot_for_ranks, usable_gpus
from workbench.doctor import Finding, Severity, diagnose_all, diagnose_limits
from workbench.doctor.finding import SEVERITIES
from workbench.errors import HorovodMissing, StartFailed
from workbench.resources import Snapshot
from workbench.resources.nccl_ports import ports_in_use

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
    severity
        On the doctor's scale; a doctor's finding keeps its own.
    rule
        Of the doctor; empty for what preflight alone checks.
    """

    vm: str
    fatal: bool
    what: str
    cure: str
    severity: Severity
    rule: str = ""

    @classmethod
    def of(cls, vm: str, error: StartFailed | HorovodMissing) -> Problem:
        """Return what a start reports of a VM that cannot have ranks."""
        return _fatal(error.vm or vm, error.cause, error.cure)

    @classmethod
    def found(cls, vm: str, finding: Finding, *, fatal: bool = False) -> Problem:
        """Return a finding of the doctor about a VM."""
        return cls(vm, fatal, finding.evidence, finding.cure, finding.severity, finding.rule)

    def failure(self) -> StartFailed:
        """Return what a start raises."""
        return StartFailed(self.what, vm=self.vm, cure=self.cure)


def _fatal(vm: str, what: str, cure: str) -> Problem:
    return Problem(vm, True, what, cure, "error")


def _warning(vm: str, what: str, cure: str) -> Problem:
    return Problem(vm, False, what, cure, "warning")


@dataclass(frozen=True)
class Preflight:
    """What was found on the VMs of a cluster, in the order of its hosts.

    Attributes
    ----------
    rows
        Per VM, by column name.
    problems
        The worst first.
    """

    rows: list[dict[str, str]]
    problems: list[Problem]

    @property
    def fatal(self) -> list[Problem]:
        """The problems for which no rank is started."""
        return [problem for problem in self.problems if problem.fatal]


def look(agents: list[Agent], links: list[Link], slots: list[int]) -> Preflight:
    """Check VMs whose agents have greeted; versions only once they have loaded.

    Parameters
    ----------
    links
        Interfaces of the VMs' collectives, in the order of `agents`.
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
    layer = link_layer(agents)
    rows = [
        _row(agent, link, count, layer)
        for agent, link, count in zip(agents, links, slots, strict=True)
    ]
    return Preflight(rows, sorted(problems, key=_badness))


def _badness(problem: Problem) -> tuple[bool, int]:
    return not problem.fatal, SEVERITIES.index(problem.severity)


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
    host = snapshot_of(agent).host
    known = [x for x in (host.memory_bytes, host.memory_limit_bytes) if isinstance(x, int)]
    if agent.local:
        known.append(psutil.virtual_memory().available)
    return min(known, default=None)


def snapshot_of(agent: Agent) -> Snapshot:
    """Return what a VM has, with NCCL's settings as its ranks will have them."""
    return snapshot_for_ranks(agent.facts, agent.host.environment if agent.host else {})


def _row(agent: Agent, link: Link, slots: int, layer: str | None) -> dict[str, str]:
    snapshot = snapshot_of(agent)
    gpus, ports = usable_gpus(snapshot), len(ports_in_use(snapshot, layer))
    nic = next((nic for nic in snapshot.nics if nic.name == link.interface), None)
    return {
        "VM": agent.name,
        "ranks": str(slots),
        "Python": str(agent.hello["python"]),
        "torch": str(agent.loaded.get("torch", "not loaded yet")),
        "Horovod": str(agent.loaded.get("horovod", "not loaded yet")),
        "GPUs": str(len(gpus)) if gpus else "none",
        "driver": ", ".join(sorted({str(gpu.driver_version) for gpu in gpus})) or "none",
        "cores": str(len(agent.facts["cores"])),
        "interface": link.interface,
        "address": link.address,
        "MTU": str(nic.mtu) if nic else "65536",
        "RDMA": f"{ports} port{'' if ports == 1 else 's'}" if ports else "no",
    }


def _reach(agents: list[Agent], links: list[Link]) -> Iterable[Problem]:
    """Every VM connects to every other one, over the links chosen."""
    if len(agents) == 1:
        return
    address = {id(agent): link.address for agent, link in zip(agents, links, strict=True)}
    servers = at_once(agents, lambda agent: agent.ask("listen", address=address[id(agent)]))
    for agent, server in zip(agents, servers, strict=True):
        if "error" in server:
            yield _fatal(
                agent.name,
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
                yield _fatal(
                    agent.name,
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
            yield _fatal(odd, f"{name} differs ({told})", "install the same version on every VM")


def _odd_one(values: dict[str, Any]) -> str:
    """Return the VM whose value is the rarest."""
    every = list(values.values())
    return min(values, key=lambda vm: (every.count(values[vm]), -list(values).index(vm)))


def _own(agent: Agent, slots: int) -> Iterable[Problem]:
    """What concerns one VM alone."""
    snapshot, name = snapshot_of(agent), agent.name
    gpus = len(usable_gpus(snapshot))
    if 0 < gpus < slots:
        yield _fatal(
            name,
            f"{slots} ranks on {gpus} GPU{'' if gpus == 1 else 's'}: each rank needs its own",
            f"start {gpus} rank{'' if gpus == 1 else 's'} there ({name}:{gpus})",
        )
    for finding in diagnose_limits(snapshot):
        yield Problem.found(name, finding)


def _clock(agent: Agent) -> float:
    """Return how far the VM's clock is from this one's, in seconds."""
    began = time.time()
    told = float(agent.ask("clock"))
    return told - (began + time.time()) / 2


def _clocks(agents: list[Agent], offsets: list[float]) -> Iterable[Problem]:
    for agent, offset in zip(agents, offsets, strict=True):
        if abs(offset) > _CLOCK_S:
            yield _warning(
                agent.name,
                f"its clock is {offset:+.1f} s off this machine's",
                "let chrony or systemd-timesyncd set it",
            )


def _mtus(agents: list[Agent], links: list[Link]) -> Iterable[Problem]:
    """The links are alike; of RDMA ports the doctor says so."""
    found = {}
    for agent, link in zip(agents, links, strict=True):
        nic = next((nic for nic in snapshot_of(agent).nics if nic.name == link.interface), None)
        if nic is not None and nic.kind != "rdma" and isinstance(nic.mtu, int):
            found[agent.name] = nic.mtu
    if len(set(found.values())) > 1:
        told = ", ".join(f"{vm} has {mtu}" for vm, mtu in found.items())
        yield _warning(
            _odd_one(found),
            f"MTU differs ({told})",
            "set the same on all (ip link set dev ... mtu ...): larger frames would be lost",
        )


def _unlike(agents: list[Agent]) -> Iterable[Problem]:
    """What the doctor finds where the VMs' hardware differs."""
    for found in diagnose_all({agent.name: snapshot_of(agent) for agent in agents}):
        fatal = found.rule == "gpus_unlike" and found.severity == "error"
        yield Problem.found(found.subject, found, fatal=fatal)
