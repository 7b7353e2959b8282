"""Checks every VM before its ranks start; a start stops at what the ranks would fail with.

The checks are rules, as the doctor's are.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import psutil

from workbench.cluster.agent import Agent
from workbench.cluster.background import at_once
from workbench.cluster.network import Link
from workbench.cluster.placement import link_layer, snapshot_for_ranks, usable_gpus
from workbench.doctor import Finding, diagnose_all, diagnose_limits
from workbench.doctor.facts import count
from workbench.doctor.rule import Case, Rule, rule
from workbench.doctor.rules import worst_first
from workbench.errors import HorovodMissing, StartFailed
from workbench.resources import Nic, Snapshot
from workbench.resources.nccl_ports import ports_in_use

_CLOCK_S = 1.0
_RANKS_PER_CORE = 8
_RANK_BYTES = 130 << 20
"""What a rank takes for itself in a small training: measured with PyTorch 2.13 on CPUs."""


@dataclass(frozen=True)
class Preflight:
    """What was found on the VMs of a cluster, in the order of its hosts.

    The subject of a finding is the name of its VM.

    Attributes
    ----------
    rows
        Per VM, by column name.
    fatal
        Findings with which ranks would fail: no rank is started.
    others
        All other findings, the worst first.
    """

    rows: list[dict[str, str]]
    fatal: list[Finding]
    others: list[Finding]

    @property
    def problems(self) -> list[Finding]:
        """All findings, the worst first."""
        return [*self.fatal, *self.others]


@dataclass(frozen=True)
class Vms:
    """What preflight checks: VMs whose agents are connected.

    Attributes
    ----------
    agents
        One per VM; versions are known only once the agent has loaded them.
    links
        Interfaces of the VMs' collectives, in the order of `agents`.
    slots
        Ranks of each VM.
    """

    agents: list[Agent]
    links: list[Link]
    slots: list[int]

    @cached_property
    def snapshots(self) -> list[Snapshot]:
        """What each VM has, in the order of `agents`."""
        return [snapshot_of(agent) for agent in self.agents]


def check(vms: Vms) -> Preflight:
    """Run the rules of preflight, and those of the doctor about limits and several VMs."""
    fatal = [finding for rule in FATAL for finding in rule(vms)]
    others = [
        replace(finding, subject=agent.name)
        for agent, snapshot in zip(vms.agents, vms.snapshots, strict=True)
        for finding in diagnose_limits(snapshot)
    ]
    others += [finding for rule in WARNINGS for finding in rule(vms)]
    names = (agent.name for agent in vms.agents)
    for finding in diagnose_all(dict(zip(names, vms.snapshots, strict=True))):
        without_gpu = finding.rule == "gpus_unlike" and finding.severity == "error"
        (fatal if without_gpu else others).append(finding)
    return Preflight(_rows(vms), fatal, worst_first(others))


def finding_of(vm: str, error: StartFailed | HorovodMissing) -> Finding:
    """Return as a finding why a VM cannot have ranks."""
    return Finding(
        rule="start_failed",
        severity="error",
        subject=error.vm or vm,
        evidence=error.cause,
        why="No rank can be started on this VM.",
        cure=error.cure,
        source="Gradient Workbench, README",
    )


def failure(finding: Finding) -> StartFailed:
    """Return the error of a start for a fatal finding."""
    return StartFailed(finding.evidence, vm=finding.subject, cure=finding.cure)


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


def _rows(vms: Vms) -> list[dict[str, str]]:
    layer = link_layer(vms.agents)
    every = zip(vms.agents, vms.snapshots, vms.links, vms.slots, strict=True)
    return [_row(agent, snapshot, link, slots, layer) for agent, snapshot, link, slots in every]


def _row(
    agent: Agent, snapshot: Snapshot, link: Link, slots: int, layer: str | None
) -> dict[str, str]:
    gpus, ports = usable_gpus(snapshot), len(ports_in_use(snapshot, layer))
    nic = _nic(snapshot, link)
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
        "RDMA": count(ports, "port") if ports else "no",
    }


def _nic(snapshot: Snapshot, link: Link) -> Nic | None:
    """Return the NIC of a link; None for the loopback interface."""
    return next((nic for nic in snapshot.nics if nic.name == link.interface), None)


@rule(
    "error",
    why="Every pair of ranks connects: a rank that another cannot reach never joins.",
    cure="open the ports between the VMs (ranks use any), or name another interface",
    source="Gloo, gloo/rendezvous/context.cc, connectFullMesh",
)
def vm_unreachable(vms: Vms) -> Iterable[Case]:
    """Find VMs that cannot connect to each other over the links of the collectives."""
    if len(vms.agents) == 1:
        return
    addresses = [link.address for link in vms.links]
    address = {id(agent): one for agent, one in zip(vms.agents, addresses, strict=True)}
    servers = at_once(vms.agents, lambda agent: agent.ask("listen", address=address[id(agent)]))
    for agent, server in zip(vms.agents, servers, strict=True):
        if "error" in server:
            yield Case(
                f"cannot listen on {address[id(agent)]} ({server['error']})",
                agent.name,
                cure="name the interface of the collectives for this host",
            )
            return

    def connect(agent: Agent) -> list[tuple[Agent, dict[str, Any]]]:
        others = [(o, s) for o, s in zip(vms.agents, servers, strict=True) if o is not agent]
        targets = [(address[id(o)], server["port"], server["token"]) for o, server in others]
        answers = agent.ask("reach", targets=targets, source=address[id(agent)])
        return [(other, answer) for (other, _), answer in zip(others, answers, strict=True)]

    for agent, results in zip(vms.agents, at_once(vms.agents, connect), strict=True):
        for other, answer in results:
            if "error" in answer:
                yield Case(
                    f"does not reach {other.name} at {address[id(other)]} from "
                    f"{address[id(agent)]} ({answer['error']})",
                    agent.name,
                )


@rule(
    "error",
    why="Ranks exchange pickled objects and tensors: another version may not read them.",
    cure="install the same version on every VM",
    source="cloudpickle, README: the same version of Python on both sides",
)
def version_mismatch(vms: Vms) -> Iterable[Case]:
    """Find other versions of Python, PyTorch, Horovod or CUDA on some VMs."""
    for name, read in (
        ("Python", lambda agent: ".".join(str(agent.hello["python"]).split(".")[:2])),
        ("torch", lambda agent: agent.loaded.get("torch")),
        ("Horovod", lambda agent: agent.loaded.get("horovod")),
        ("CUDA", lambda agent: agent.loaded.get("cuda")),
    ):
        yield from _mismatch(name, {agent.name: read(agent) for agent in vms.agents})


@rule(
    "error",
    why="NCCL stops if two ranks share a GPU.",
    source="NVIDIA, NCCL, src/init.cc, Duplicate GPU detected",
)
def too_few_gpus(vms: Vms) -> Iterable[Case]:
    """Find VMs with GPUs, but fewer than ranks."""
    for agent, snapshot, slots in zip(vms.agents, vms.snapshots, vms.slots, strict=True):
        gpus = len(usable_gpus(snapshot))
        if 0 < gpus < slots:
            yield Case(
                f"{slots} ranks on {count(gpus, 'GPU')}: each rank needs its own",
                agent.name,
                cure=f"start {count(gpus, 'rank')} there ({agent.name}:{gpus})",
            )


@rule(
    "warning",
    why="Times that programs on the VMs write to logs and files cannot be compared.",
    cure="let chrony or systemd-timesyncd set it",
    source="systemd, systemd-timesyncd.service(8); chrony documentation, chrony.conf(5)",
)
def clock_offset(vms: Vms) -> Iterable[Case]:
    """Find VMs whose clock differs from this machine's by more than a second."""
    for agent, offset in zip(vms.agents, at_once(vms.agents, _clock_offset), strict=True):
        if abs(offset) > _CLOCK_S:
            yield Case(f"its clock is {offset:+.1f} s off this machine's", agent.name)


def _clock_offset(agent: Agent) -> float:
    """Return how far the VM's clock is ahead of this one's, in seconds."""
    began = time.time()
    answer = float(agent.ask("clock"))
    return answer - (began + time.time()) / 2


@rule(
    "warning",
    why="Over TCP, frames above the smaller MTU are lost.",
    cure="set the same on all (ip link set dev ... mtu ...): larger frames would be lost",
    source="NVIDIA, NCCL User Guide, Troubleshooting, Networking issues",
)
def mtu_mismatch(vms: Vms) -> Iterable[Case]:
    """Find links with another MTU; the doctor compares those of RDMA ports."""
    mtus: dict[str, object] = {}
    for agent, snapshot, link in zip(vms.agents, vms.snapshots, vms.links, strict=True):
        nic = _nic(snapshot, link)
        if nic is not None and nic.kind != "rdma" and isinstance(nic.mtu, int):
            mtus[agent.name] = nic.mtu
    return _mismatch("MTU", mtus)


def _mismatch(name: str, values: dict[str, object]) -> list[Case]:
    """Return a case about the VM with the rarest value if they differ; None is not known."""
    if len({value for value in values.values() if value is not None}) < 2:
        return []
    every = list(values.values())
    words = ", ".join(f"{vm} has {value or 'none'}" for vm, value in values.items())
    rarest = min(values, key=lambda vm: (every.count(values[vm]), -list(values).index(vm)))
    return [Case(f"{name} differs ({words})", rarest)]


FATAL: tuple[Rule[Vms], ...] = (vm_unreachable, version_mismatch, too_few_gpus)
"""Rules about what ranks cannot start with."""

WARNINGS: tuple[Rule[Vms], ...] = (clock_offset, mtu_mismatch)
"""Rules about what ranks can start with."""
