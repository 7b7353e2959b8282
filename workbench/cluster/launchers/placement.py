"""The network interface of each VM's collectives, and the GPU, NIC and cores of each rank.

The interface is the one that the user has named for the VM; otherwise one in a network that all
VMs share, RDMA before plain and faster before slower; otherwise that of the VM's route to others.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from workbench.cluster.agent import Agent
from workbench.errors import StartFailed
from workbench.resources import Distance, Gpu, Nic, Snapshot
from workbench.resources.nccl_ports import (
    HCA_SETTING,
    common_layer,
    exclusion,
    ports_in_use,
    settings_of,
)
from workbench.wire.address import is_own_address
from workbench.wire.agent_messages import Facts


@dataclass(frozen=True)
class Link:
    """A VM's interface for collectives, its address there, and why it was chosen."""

    interface: str
    address: str
    why: str


_LOOPBACK = Link("lo", "127.0.0.1", "named by the user")


def kernel_address(agents: list[Agent]) -> str:
    """Return this machine's address as the VMs see it; loopback if there are no other VMs.

    Raise `StartFailed` if they see different addresses, or one where this machine cannot listen.
    """
    seen = {
        agent.name: agent.hello.connection.split()[0].split("%")[0]
        for agent in agents
        if agent.host is not None and agent.hello.connection
    }
    if not seen:
        return _LOOPBACK.address
    if len(set(seen.values())) > 1:
        seen_at = ", ".join(f"{name} sees {address}" for name, address in seen.items())
        raise StartFailed(
            f"the VMs see this machine at different addresses ({seen_at}); "
            "it can listen on only one",
            cure="reach all VMs through one network (HostName in the ssh config)",
        )
    address = next(iter(seen.values()))
    if ":" in address or not is_own_address(address):
        raise StartFailed(
            f"the VMs see this machine at {address}, where it cannot listen for them (a jump host, "
            "an address translation or IPv6 in between)",
            cure="reach them over a network in which both have IPv4 addresses of their own",
        )
    return address


def choose(agents: list[Agent]) -> list[Link]:
    """Return each VM's link, in the order of `agents`.

    Raise `StartFailed` if a VM lacks the interface that was named, or one that reaches the others.
    """
    named = [agent.host.interface if agent.host else None for agent in agents]
    machines = {agent.facts.machine for agent in agents}
    if not any(named) and len(machines) == 1 and (len(agents) == 1 or machines != {None}):
        return [replace(_LOOPBACK, why="all ranks are on one VM")] * len(agents)
    reached = {_ssh_address(agent) for agent in agents}
    shared = _shared([_candidates(agent) for agent in agents], reached)
    return [
        _named(agent, interface)
        if interface
        else shared[place]
        if shared
        else _routed(agent, agents)
        for place, (agent, interface) in enumerate(zip(agents, named, strict=True))
    ]


@dataclass(frozen=True)
class _Candidate:
    link: Link
    network: str
    rdma: bool
    rate_gbps: float


def _nics(agent: Agent) -> tuple[Nic, ...]:
    return Snapshot.from_plain(agent.facts.snapshot).nics


def _candidates(agent: Agent) -> list[_Candidate]:
    """Return the interfaces of a VM that are up and have an IPv4 address."""
    found = []
    for nic in _nics(agent):
        if nic.state not in {"up", "active", "unknown"} or not isinstance(nic.addresses, tuple):
            continue
        rate = nic.rate_gbps if isinstance(nic.rate_gbps, float | int) else 0.0
        for text in nic.addresses:
            network = agent.facts.networks.get(text)
            if network is None or ipaddress.ip_address(text.split("%")[0]).version != 4:
                continue
            what = "RDMA-capable" if nic.kind == "rdma" else "plain"
            why = f"{what}, in {network} like the other VMs'"
            link = Link(nic.name, text, why)
            found.append(_Candidate(link, network, nic.kind == "rdma", rate))
    return found


def _shared(candidates: list[list[_Candidate]], reached: set[str]) -> list[Link] | None:
    """Return a link per VM in the best network that all VMs share, or None.

    `reached` are the addresses that ssh uses: the last criterion.
    """
    best: tuple[tuple[bool, float, bool], list[Link]] | None = None
    for network in {one.network for one in candidates[0]}:
        rows = [[one for one in row if one.network == network] for row in candidates]
        addresses = {one.link.address for row in rows for one in row}
        # the same address on two VMs belongs to a private network of each, like a container bridge
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
    if interface == _LOOPBACK.interface:
        return _LOOPBACK
    names = []
    for nic in _nics(agent):
        names.append(nic.name)
        if nic.name != interface or not isinstance(nic.addresses, tuple):
            continue
        plain = sorted(nic.addresses, key=lambda text: ":" in text)  # IPv4 first
        if plain:
            return Link(nic.name, plain[0], "named by the user")
        raise StartFailed(
            f"interface {interface} has no address", vm=agent.name, cure="give it one"
        )
    raise StartFailed(
        f"interface {interface!r}: not on this VM",
        vm=agent.name,
        cure=f"name one of {', '.join(names)}" if names else "check `ip link` there",
    )


def _routed(agent: Agent, agents: list[Agent]) -> Link:
    """Return the interface by which the VM's route to another one leaves."""
    others = [_ssh_address(other) for other in agents if other is not agent]
    targets = [address for address in others if address]
    answers = agent.ask("route", to=targets) if targets else []
    for target, answer in zip(targets, answers, strict=True):
        if answer["source"] and answer["interface"] not in {"", _LOOPBACK.interface}:
            return Link(answer["interface"], answer["source"], f"its route to {target}")
    raise StartFailed(
        f"no route to the other VMs ({', '.join(others)}) was found",
        vm=agent.name,
        cure="name its interface (interface=... in the host file)",
    )


def _ssh_address(agent: Agent) -> str:
    """Return the address at which ssh reached the VM."""
    parts = agent.hello.connection.split()
    return parts[2].split("%")[0] if len(parts) == 4 else ""


_INTERFACE_SETTING = "NCCL_SOCKET_IFNAME"


@dataclass(frozen=True)
class Placement:
    """What one rank uses of its VM.

    Attributes
    ----------
    gpu
        As users see it: ``"0 (A100-40C)"``, or ``"CPU"``.
    numa
        NUMA node of the GPU, or ``"any"``.
    nic
        The interface of its collectives, and the RDMA port nearest to its GPU. NCCL uses
        all ports of the VM, this one first.
    cores
        Cores that it may run on; empty for all. Memory is allocated on the same NUMA node.
    environment
        Variables for this placement; NCCL's are the same for all ranks of a VM.
    """

    gpu: str
    numa: str
    nic: str
    cores: tuple[int, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


def snapshot_for_ranks(facts: Facts, environment: Mapping[str, str]) -> Snapshot:
    """Return a VM's snapshot with the NCCL settings that the ranks' `environment` gives them."""
    snapshot = Snapshot.from_plain(facts.snapshot)
    given = {name: value for name, value in environment.items() if name.startswith("NCCL_")}
    if not given:
        return snapshot
    settings = {**settings_of(snapshot), **given}
    return replace(snapshot, host=replace(snapshot.host, nccl_settings=settings))


def link_layer(agents: Iterable[Agent]) -> str | None:
    """Return the link layer on which all VMs reach each other over RDMA; None without RDMA."""
    return common_layer(
        Snapshot.from_plain(one.facts.snapshot) for one in agents if one.facts.snapshot
    )


def place(
    facts: Facts,
    interface: str,
    slots: int,
    *,
    layer: str | None = None,
    environment: Mapping[str, str] | None = None,
    visible: str | None = None,
) -> list[Placement]:
    """Return a placement for each local rank of a VM.

    Parameters
    ----------
    facts
        The report of the VM's agent.
    interface
        Network interface of its collectives.
    slots
        Ranks on this VM.
    layer
        The link layer of the RDMA ports (`link_layer`).
    environment
        Variables of the host file for the ranks of this VM; none of them is overwritten.
    visible
        The CUDA_VISIBLE_DEVICES that the rank has already, with the indices or UUIDs of its GPUs.
    """
    snapshot = snapshot_for_ranks(facts, environment or {})
    gpus = usable_gpus(snapshot)
    if visible is not None:
        by_name = {name: gpu for gpu in gpus for name in (str(gpu.index), str(gpu.uuid))}
        gpus = [by_name[name] for name in visible.split(",") if name in by_name]
    if not gpus:
        return [Placement("CPU", "any", interface)] * slots
    nearest = _nearest_ports(snapshot, gpus, layer)
    common = _nccl_environment(snapshot, interface, layer)
    found = []
    for number in (slot % len(gpus) for slot in range(slots)):
        gpu, port = gpus[number], nearest[number]
        node = facts.numa_of.get(str(gpu.pci_address))
        own = _visible(gpus, gpu, slots) if visible is None else {}
        found.append(
            Placement(
                gpu=_name(gpu, number),
                numa="any" if node is None else str(node),
                nic=interface if port is None else f"{interface}, {port.rdma_device}",
                cores=() if node is None else tuple(facts.cores_of.get(str(node), ())),
                environment={**own, **common},
            )
        )
    return found


def usable_gpus(snapshot: Snapshot) -> list[Gpu]:
    """Return the GPUs for processes: MIG devices instead of a GPU that is divided into them."""
    cut = {gpu.index for gpu in snapshot.gpus if gpu.form == "mig"}
    return [gpu for gpu in snapshot.gpus if gpu.form == "mig" or gpu.index not in cut]


def _nccl_environment(snapshot: Snapshot, interface: str, layer: str | None) -> dict[str, str]:
    """Return NCCL's settings for all ranks of a VM, without those that the user has set."""
    wanted = {
        _INTERFACE_SETTING: f"={interface}",  # otherwise its bootstrap may use another one
        HCA_SETTING: exclusion(snapshot, layer),
    }
    own = settings_of(snapshot)
    return {name: value for name, value in wanted.items() if value and name not in own}


def _name(gpu: Gpu, number: int) -> str:
    what = gpu.vgpu_profile if isinstance(gpu.vgpu_profile, str) else gpu.name
    return f"{number} ({what})" if isinstance(what, str) else str(number)


def _visible(gpus: list[Gpu], own: Gpu, slots: int) -> dict[str, str]:
    """Return the variables with which ``cuda:slot`` is the rank's GPU.

    A process sees at most one MIG device, which is ``cuda:0`` there.
    """
    if not isinstance(own.uuid, str):
        return {}
    if own.form == "mig":
        return {"CUDA_VISIBLE_DEVICES": own.uuid}
    uuids = [gpu.uuid for gpu in gpus[:slots] if isinstance(gpu.uuid, str)]
    return {"CUDA_VISIBLE_DEVICES": ",".join(uuids)}


def _nearest_ports(snapshot: Snapshot, gpus: list[Gpu], layer: str | None) -> list[Nic | None]:
    """Return the nearest RDMA port of each GPU; equally near ports are distributed evenly.

    A GPU has none if no distance is known, unless there is only one port.
    """
    ports = ports_in_use(snapshot, layer)
    taken: Counter[int] = Counter()
    found: list[Nic | None] = []
    for gpu in gpus:
        ways = [snapshot.distance(gpu, port) for port in ports]
        known = [way for way in ways if isinstance(way, Distance)]
        near = [place for place, way in enumerate(ways) if known and way == min(known)]
        if not near and len(ports) == 1:
            near = [0]
        chosen = min(near, key=lambda place: taken[place], default=None)
        taken.update([] if chosen is None else [chosen])
        found.append(None if chosen is None else ports[chosen])
    return found
