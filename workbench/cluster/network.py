"""Which network interface of each VM carries the collectives.

In order: what the user named for the VM; the network in which every VM has an
interface, those with RDMA before plain ones, faster before slower; the
interface by which the VM's route to the others leaves.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from workbench.cluster.agent import Agent
from workbench.errors import StartFailed
from workbench.resources import Snapshot
from workbench.resources.nics.records import Nic

LOOPBACK = "lo"


@dataclass(frozen=True)
class Link:
    """Where a VM meets the others.

    Attributes
    ----------
    interface
        Its name on that VM.
    address
        The VM's address there.
    why
        How it was chosen.
    """

    interface: str
    address: str
    why: str


def kernel_address(agents: list[Agent]) -> str:
    """Return this machine's address as the VMs see it; loopback where there is no other VM.

    Raises
    ------
    StartFailed
        The VMs see different addresses, or none is told.
    """
    seen = {
        agent.name: str(agent.hello["connection"]).split()[0].split("%")[0]
        for agent in agents
        if agent.host is not None and agent.hello["connection"]
    }
    if not seen:
        return "127.0.0.1"
    if len(set(seen.values())) > 1:
        told = ", ".join(f"{name} sees {address}" for name, address in seen.items())
        raise StartFailed(
            f"the VMs see this machine at different addresses ({told}), its ports can be on one",
            cure="reach all VMs through one network (HostName in the ssh config)",
        )
    address = next(iter(seen.values()))
    if ":" in address or not _is_own(address):
        raise StartFailed(
            f"the VMs see this machine at {address}, where it cannot listen for them (a jump host, "
            "an address translation or IPv6 in between)",
            cure="reach them over a network in which both have IPv4 addresses of their own",
        )
    return address


def _is_own(address: str) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def choose(agents: list[Agent]) -> list[Link]:
    """Return each VM's link, in the order of `agents`.

    Raises
    ------
    StartFailed
        A VM does not have the interface that was named, or none that reaches the others.
    """
    if len(agents) == 1:
        return [_only(agents[0])]
    reached = {_ssh_address(agent) for agent in agents}
    shared = _shared([_candidates(agent) for agent in agents], reached)
    return [
        _named(agent, agent.host.interface)
        if agent.host and agent.host.interface
        else shared[place]
        if shared
        else _routed(agent, agents)
        for place, agent in enumerate(agents)
    ]


def _only(agent: Agent) -> Link:
    if agent.host and agent.host.interface:
        return _named(agent, agent.host.interface)
    return Link(LOOPBACK, "127.0.0.1", "all ranks are on one VM")


@dataclass(frozen=True)
class _Candidate:
    link: Link
    network: str
    rdma: bool
    rate_gbps: float


def _nics(agent: Agent) -> tuple[Nic, ...]:
    return Snapshot.from_plain(agent.facts["snapshot"]).nics


def _candidates(agent: Agent) -> list[_Candidate]:
    """Return the interfaces of a VM that are up and have an IPv4 address."""
    found = []
    for nic in _nics(agent):
        if nic.state not in {"up", "active", "unknown"} or not isinstance(nic.addresses, tuple):
            continue
        rate = nic.rate_gbps if isinstance(nic.rate_gbps, float | int) else 0.0
        for text in nic.addresses:
            network = agent.facts["networks"].get(text)
            if network is None or ipaddress.ip_address(text.split("%")[0]).version != 4:
                continue
            what = "RDMA-capable" if nic.kind == "rdma" else "plain"
            why = f"{what}, in {network} like the other VMs'"
            link = Link(nic.name, text, why)
            found.append(_Candidate(link, network, nic.kind == "rdma", rate))
    return found


def _shared(candidates: list[list[_Candidate]], reached: set[str]) -> list[Link] | None:
    """Return a link per VM in the best network that all VMs have, or None.

    `reached` are addresses at which ssh found them: the last thing to choose by.
    """
    best: tuple[tuple[bool, float, bool], list[Link]] | None = None
    for network in {one.network for one in candidates[0]}:
        rows = [[one for one in row if one.network == network] for row in candidates]
        addresses = {one.link.address for row in rows for one in row}
        # the same address on two VMs is a network of each VM's own, such as a container bridge
        if not all(rows) or len(addresses) < sum(map(len, rows)):
            continue
        chosen = [max(row, key=lambda one: (one.rdma, one.rate_gbps)) for row in rows]
        worth = (
            all(one.rdma for one in chosen),
            min(one.rate_gbps for one in chosen),
            all(one.link.address in reached for one in chosen),
        )
        if best is None or worth > best[0]:
            best = worth, [one.link for one in chosen]
    return best[1] if best else None


def _named(agent: Agent, interface: str) -> Link:
    if interface == LOOPBACK:
        return Link(LOOPBACK, "127.0.0.1", "as asked")
    names = []
    for nic in _nics(agent):
        names.append(nic.name)
        if nic.name != interface or not isinstance(nic.addresses, tuple):
            continue
        plain = sorted(nic.addresses, key=lambda text: ":" in text)  # IPv4 first
        if plain:
            return Link(nic.name, plain[0], "as asked")
        raise StartFailed(
            f"interface {interface} has no address", vm=agent.name, cure="give it one"
        )
    raise StartFailed(
        f"interface {interface!r}: not on this VM, which has {', '.join(names)}",
        vm=agent.name,
        cure="name one of these",
    )


def _routed(agent: Agent, agents: list[Agent]) -> Link:
    """Return the interface by which the VM's route to another one leaves."""
    others = [_ssh_address(other) for other in agents if other is not agent]
    targets = [address for address in others if address]
    answers = agent.ask("route", to=targets) if targets else []
    for target, answer in zip(targets, answers, strict=True):
        if answer["source"] and answer["interface"] not in {"", LOOPBACK}:
            return Link(answer["interface"], answer["source"], f"its route to {target}")
    raise StartFailed(
        f"no route to the other VMs ({', '.join(others)}) was found",
        vm=agent.name,
        cure="name its interface (interface=... in the host file)",
    )


def _ssh_address(agent: Agent) -> str:
    """Return the address at which ssh reached the VM."""
    parts = str(agent.hello.get("connection", "")).split()
    return parts[2].split("%")[0] if len(parts) == 4 else ""
