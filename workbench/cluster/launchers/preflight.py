"""Check all VMs before their ranks start. The checks are rules, like the rules of the doctor.

`survey` makes the same checks without starting a rank, for ``%doctor --hosts``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

from workbench.cluster.agent import Agent
from workbench.cluster.launchers import FOR_HOSTS, create
from workbench.cluster.launchers.placement import (
    Link,
    choose,
    link_layer,
    snapshot_for_ranks,
    usable_gpus,
)
from workbench.cluster.options import checked_ssh_config
from workbench.cluster.threads import run_concurrently
from workbench.doctor import Finding, diagnose_all, diagnose_limits
from workbench.doctor.facts import count
from workbench.doctor.rule import Case, Rule, rule
from workbench.doctor.rules import worst_first
from workbench.errors import StartFailed
from workbench.hosts import HostsLike, parse_hosts, with_key
from workbench.resources import Nic, Snapshot
from workbench.resources.nccl_ports import ports_in_use

_log = logging.getLogger(__name__)

_MAX_CLOCK_OFFSET_S = 1.0
_MAX_RANKS_PER_CORE = 8
_RANK_BYTES = 130 << 20
"""Memory of a rank in a small training, measured with PyTorch 2.13 on CPUs."""


@dataclass(frozen=True)
class Preflight:
    """The result of the checks of a cluster's VMs.

    Attributes
    ----------
    rows
        A table with a row per VM, in the order of the hosts.
    fatal
        Findings that would make ranks fail. No rank is started if there are any.
    others
        All other findings, the worst first. The subject of a finding is the name of its VM.
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
    """The input of the rules: the agent, the link and the number of ranks of each VM."""

    agents: list[Agent]
    links: list[Link]
    slots: list[int]

    @property
    def libraries(self) -> list[str]:
        """``torch``, and the names of the libraries that any VM has loaded."""
        names = ["torch", *(name for agent in self.agents for name in agent.loaded.versions)]
        return list(dict.fromkeys(names))

    @cached_property
    def snapshots(self) -> list[Snapshot]:
        """The VMs' snapshots, in the order of `agents`."""
        return [snapshot_of(agent) for agent in self.agents]


def check(vms: Vms) -> Preflight:
    """Run the rules of this module, and the doctor's rules about limits and several VMs."""
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
    layer = link_layer(vms.agents)
    rows = [_row(vms, number, layer) for number in range(len(vms.agents))]
    _log.info(
        "Checked %d VMs: %d fatal findings, %d others", len(vms.agents), len(fatal), len(others)
    )
    return Preflight(rows, fatal, worst_first(others))


def finding_of(vm: str, error: StartFailed) -> Finding:
    """Return a finding about a VM on which no rank can start."""
    return Finding(
        rule="start_failed",
        severity="error",
        subject=error.vm or vm,
        evidence=error.cause,
        why="No rank can be started on this VM.",
        fix=error.fix,
        source="Gradient Workbench documentation, Train across VMs",
    )


def failure(finding: Finding) -> StartFailed:
    """Return the error of a start that has a fatal finding."""
    return StartFailed(finding.evidence, vm=finding.subject, fix=finding.fix)


def crowding(agent: Agent, slots: int) -> Iterable[str]:
    """Yield a warning if a VM may have too few cores or too little memory for its ranks."""
    cores = len(agent.facts.cores)
    if slots > _MAX_RANKS_PER_CORE * cores:
        yield (
            f"{agent.name}: {slots} ranks share {cores} cores, and may not be ready in time. "
            f"Start at most {_MAX_RANKS_PER_CORE * cores}, or raise start_timeout_s of wb.Cluster."
        )
    available = _available_bytes(agent)
    needed = slots * _RANK_BYTES
    if available is not None and needed > available:
        yield (
            f"{agent.name}: {slots} ranks need at least {needed / 2**30:.1f} GiB of memory, and "
            f"{available / 2**30:.1f} GiB are there. Start at most {available // _RANK_BYTES}."
        )


def _available_bytes(agent: Agent) -> int | None:
    """Return the free memory of this machine or the total memory of another VM, in bytes."""
    host = snapshot_of(agent).host
    limits = [
        limit for limit in (host.memory_bytes, host.memory_limit_bytes) if isinstance(limit, int)
    ]
    if agent.local:
        limits.append(psutil.virtual_memory().available)
    return min(limits, default=None)


def snapshot_of(agent: Agent) -> Snapshot:
    """Return a VM's snapshot, with the NCCL settings of its ranks."""
    return snapshot_for_ranks(agent.facts, agent.host.environment if agent.host else {})


def _row(vms: Vms, number: int, layer: str | None) -> dict[str, str]:
    """Return the row of a VM in the table of `Preflight`."""
    agent = vms.agents[number]
    snapshot = vms.snapshots[number]
    link = vms.links[number]
    gpus = usable_gpus(snapshot)
    ports = len(ports_in_use(snapshot, layer))
    libraries = [name for name in vms.libraries if name != "CUDA"]
    nic = _nic(snapshot, link)
    return {
        "VM": agent.name,
        "ranks": str(vms.slots[number]),
        "Python": agent.hello.python,
        **{name: agent.loaded.versions.get(name) or "not loaded yet" for name in libraries},
        "GPUs": str(len(gpus)) if gpus else "none",
        "driver": ", ".join(sorted({str(gpu.driver_version) for gpu in gpus})) or "none",
        "cores": str(len(agent.facts.cores)),
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
    fix="open the ports between the VMs (ranks use any), or name another interface",
    source="Gloo, gloo/rendezvous/context.cc, connectFullMesh",
)
def vm_unreachable(vms: Vms) -> Iterable[Case]:
    """Find VMs that cannot connect to each other over the links of the collectives."""
    if len(vms.agents) == 1:
        return
    ends = [(agent, link.address) for agent, link in zip(vms.agents, vms.links, strict=True)]
    servers = run_concurrently(ends, lambda end: end[0].ask("listen", address=end[1]))
    targets = []
    for (agent, address), server in zip(ends, servers, strict=True):
        if "error" in server:
            yield Case(
                f"cannot listen on {address} ({server['error']})",
                agent.name,
                fix="name the interface of the collectives for this host",
            )
            return
        targets.append((address, server["port"], server["token"]))

    def connect(end: tuple[Agent, str]) -> list[dict[str, Any]]:
        others = [target for other, target in zip(ends, targets, strict=True) if other is not end]
        answers: list[dict[str, Any]] = end[0].ask("reach", targets=others, source=end[1])
        return answers

    for end, answers in zip(ends, run_concurrently(ends, connect), strict=True):
        for other, answer in zip(
            (other_end for other_end in ends if other_end is not end), answers, strict=True
        ):
            if "error" in answer:
                yield Case(
                    f"does not reach {other[0].name} at {other[1]} from {end[1]} "
                    f"({answer['error']})",
                    end[0].name,
                )


@rule(
    "error",
    why="Ranks exchange pickled objects and tensors: another version may not read them.",
    fix="install the same version on every VM",
    source="cloudpickle, README: the same version of Python on both sides",
)
def version_mismatch(vms: Vms) -> Iterable[Case]:
    """Find different versions of Python or of the ranks' libraries on the VMs."""
    pythons = {agent.name: ".".join(agent.hello.python.split(".")[:2]) for agent in vms.agents}
    yield from _mismatch("Python", pythons)
    for name in vms.libraries:
        versions = {agent.name: agent.loaded.versions.get(name) for agent in vms.agents}
        yield from _mismatch(name, versions)


@rule(
    "warning",
    why="NCCL refuses two ranks on one GPU at their first collective.",
    source="NVIDIA, NCCL, src/init.cc, Duplicate GPU detected",
)
def too_few_gpus(vms: Vms) -> Iterable[Case]:
    """Find VMs that have GPUs, but fewer GPUs than ranks."""
    for agent, snapshot, slots in zip(vms.agents, vms.snapshots, vms.slots, strict=True):
        gpus = len(usable_gpus(snapshot))
        if 0 < gpus < slots:
            yield Case(
                f"{slots} ranks on {count(gpus, 'GPU')}: for NCCL, each rank needs its own",
                agent.name,
                fix=f"start {count(gpus, 'rank')} there, divide the GPU into MIG devices, or try "
                "Gloo: --backend ddp, and dist.init_process_group('gloo') in a cell",
            )


@rule(
    "warning",
    why="Times that programs on the VMs write to logs and files cannot be compared.",
    fix="let chrony or systemd-timesyncd set it",
    source="systemd, systemd-timesyncd.service(8); chrony documentation, chrony.conf(5)",
)
def clock_offset(vms: Vms) -> Iterable[Case]:
    """Find VMs whose clock differs from this machine's by more than a second."""
    for agent, offset in zip(vms.agents, run_concurrently(vms.agents, _clock_offset), strict=True):
        if abs(offset) > _MAX_CLOCK_OFFSET_S:
            yield Case(f"its clock is {offset:+.1f} s off this machine's", agent.name)


def _clock_offset(agent: Agent) -> float:
    """Return how far the VM's clock is ahead of this machine's clock, in seconds."""
    began = time.time()
    answer = float(agent.ask("clock"))
    return answer - (began + time.time()) / 2


@rule(
    "warning",
    why="Over TCP, frames above the smaller MTU are lost.",
    fix="set the same on all (ip link set dev ... mtu ...): larger frames would be lost",
    source="NVIDIA, NCCL User Guide, Troubleshooting, Networking issues",
)
def mtu_mismatch(vms: Vms) -> Iterable[Case]:
    """Find links with different MTUs. The doctor compares the MTUs of RDMA ports."""
    mtus: dict[str, object] = {}
    for agent, snapshot, link in zip(vms.agents, vms.snapshots, vms.links, strict=True):
        nic = _nic(snapshot, link)
        if nic is not None and nic.kind != "rdma" and isinstance(nic.mtu, int):
            mtus[agent.name] = nic.mtu
    return _mismatch("MTU", mtus)


def _mismatch(name: str, values: Mapping[str, object]) -> list[Case]:
    """Return a case about the VM with the rarest value if the values of the VMs differ.

    The value None means unknown and is ignored.
    """
    if len({value for value in values.values() if value is not None}) < 2:
        return []
    all_values = list(values.values())
    values_text = ", ".join(f"{vm} has {value or 'none'}" for vm, value in values.items())
    rarest = min(values, key=lambda vm: (all_values.count(values[vm]), -list(values).index(vm)))
    return [Case(f"{name} differs ({values_text})", rarest)]


FATAL: tuple[Rule[Vms], ...] = (vm_unreachable, version_mismatch)
"""Rules about problems that prevent ranks from starting."""

WARNINGS: tuple[Rule[Vms], ...] = (too_few_gpus, clock_offset, mtu_mismatch)
"""Rules about problems in spite of which ranks can start."""


# Checks without ranks.


@dataclass(frozen=True)
class Survey:
    """The checks of all VMs, and the snapshots by VM name, without VMs that do not answer."""

    preflight: Preflight
    snapshots: dict[str, Snapshot]


def survey(
    hosts: HostsLike,
    ssh_config: str | Path | None = None,
    ssh_key: str | Path | None = None,
    timeout_s: float = 60.0,
) -> Survey:
    """Check all VMs of `hosts` concurrently. If a VM does not answer, that is a finding.

    Parameters
    ----------
    hosts
        The hosts, as for `parse_hosts`.
    ssh_config
        An ssh client configuration, which replaces the user's.
    ssh_key
        The key file of hosts without a key file.
    timeout_s
        The time limit for the start of all agents.

    Raises
    ------
    UsageError
        `hosts`, `ssh_config` or `ssh_key` cannot be read.
    """
    parsed_hosts = with_key(parse_hosts(hosts), ssh_key)
    launcher = create(FOR_HOSTS, None if ssh_config is None else checked_ssh_config(ssh_config))
    agents = [Agent(host, host.slots, launcher) for host in parsed_hosts]
    try:
        return _check(agents, time.monotonic() + timeout_s)
    finally:
        run_concurrently(agents, Agent.close)


def _check(agents: list[Agent], deadline: float) -> Survey:
    """Start all agents, and check the VMs that answer."""
    failures: list[Finding] = []
    answering = []
    for agent in agents:
        try:
            agent.wait_until_greeted(deadline)
            answering.append(agent)
            agent.wait_until_loaded(deadline)
        except StartFailed as error:
            _log.info("%s: %s", agent.name, error.cause)
            failures.append(finding_of(agent.name, error))
    preflight = Preflight([], [], [])
    if answering:
        slots = [agent.host.slots if agent.host else 1 for agent in answering]
        try:
            preflight = check(Vms(answering, choose(answering), slots))
        except StartFailed as error:
            failures.append(finding_of(answering[0].name, error))
    snapshots = {agent.name: snapshot_of(agent) for agent in answering}
    return Survey(replace(preflight, fatal=failures + preflight.fatal), snapshots)
