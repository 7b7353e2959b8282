"""Surveys VMs without starting a rank: what ``%doctor --hosts`` shows."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from workbench.cluster import network, preflight
from workbench.cluster.agent import Agent
from workbench.cluster.background import at_once
from workbench.cluster.hosts import HostsLike, parse_hosts
from workbench.cluster.options import checked_ssh_config
from workbench.cluster.preflight import Preflight, Vms
from workbench.doctor import Finding
from workbench.errors import HorovodMissing, StartFailed
from workbench.resources import Snapshot


@dataclass(frozen=True)
class Survey:
    """What was found on VMs.

    Attributes
    ----------
    preflight
        A row per VM that answers, and the findings about all.
    snapshots
        What each VM that answers has, by its name.
    """

    preflight: Preflight
    snapshots: dict[str, Snapshot]


def survey(
    hosts: HostsLike, ssh_config: str | Path | None = None, timeout_s: float = 60.0
) -> Survey:
    """Survey all VMs of `hosts` at once; one that does not answer is a problem, not an error.

    Raises
    ------
    UsageError
        `hosts` cannot be read.
    """
    chosen = parse_hosts(hosts)
    config = None if ssh_config is None else checked_ssh_config(ssh_config)
    agents = [Agent(host, host.slots, config) for host in chosen]
    try:
        return _check(agents, time.monotonic() + timeout_s)
    finally:
        at_once(agents, Agent.close)


def _check(agents: list[Agent], deadline: float) -> Survey:
    failures: list[Finding] = []
    there = []
    for agent in agents:
        try:
            agent.wait_until_greeted(deadline)
            there.append(agent)
            agent.wait_until_loaded(deadline)
        except (StartFailed, HorovodMissing) as error:
            failures.append(preflight.finding_of(agent.name, error))
    found = Preflight([], [], [])
    if there:
        slots = [agent.host.slots if agent.host else 1 for agent in there]
        try:
            found = preflight.check(Vms(there, network.choose(there), slots))
        except StartFailed as error:
            failures.append(preflight.finding_of(there[0].name, error))
    snapshots = {agent.name: preflight.snapshot_of(agent) for agent in there}
    return Survey(replace(found, fatal=failures + found.fatal), snapshots)
