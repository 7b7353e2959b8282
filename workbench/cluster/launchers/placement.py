"""Choose the network interface of each VM, and the GPU, NIC and cores of each rank.

The interface carries the collectives. It is the interface that the user has named for the VM.
Otherwise, it is an interface in a network that all VMs share: RDMA is preferred to plain networks,
and faster interfaces to slower ones. Otherwise, it is the interface of the VM's route to others.
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
    """A VM's interface for collectives, its address, and the reason for the choice."""

    interface: str
    address: str
    why: str


_LOOPBACK = Link("lo", "127.0.0.1", "named by the user")


def kernel_address(agents: list[Agent]) -> str:
    """Return the address of this machine that the VMs can reach; loopback without other VMs.

    Raises
    ------
    StartFailed
        The VMs see this machine at different addresses, or at an address where it cannot listen.
    """
    addresses = {
        agent.name: agent.hello.connection.split()[0].split("%")[0]
        for agent in agents
        if agent.host is not None and agent.hello.connection
    }
    if not addresses:
        return _LOOPBACK.address
    if len(set(addresses.values())) > 1:
        addresses_text = ", ".join(f"{name} sees {address}" for name, address in addresses.items())
        raise StartFailed(
            f"the VMs see this machine at different addresses ({addresses_text}); "
            "it can listen on only one",
            fix="reach all VMs through one network (HostName in the ssh config)",
        )
    address = next(iter(addresses.values()))
    if ":" in address or not is_own_address(address):
        raise StartFailed(
            f"the VMs see this machine at {address}, where it cannot listen for them (a jump host, "
            "an address translation or IPv6 in between)",
            fix="reach them over a network in which both have IPv4 addresses of their own",
        )
    return address


def choose(agents: list[Agent]) -> list[Link]:
    """Choose each VM's link, and return the links in the order of `agents`.

    Raises
    ------
    StartFailed
        A VM lacks the interface that was named, or an interface that reaches the other VMs.
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
        else shared[position]
        if shared
        else _routed(agent, agents)
        for position, (agent, interface) in enumerate(zip(agents, named, strict=True))
    ]


@dataclass(frozen=True)
class _Candidate:
    """An interface that may carry collectives, with its network and its rate."""

    link: Link
    network: str
    rdma: bool
    rate_gbps: float


def _nics(agent: Agent) -> tuple[Nic, ...]:
    return Snapshot.from_plain(agent.facts.snapshot).nics


def _candidates(agent: Agent) -> list[_Candidate]:
    """Return the interfaces of a VM that are up and have an IPv4 address."""
    candidates = []
    for nic in _nics(agent):
        if nic.state not in {"up", "active", "unknown"} or not isinstance(nic.addresses, tuple):
            continue
        rate = nic.rate_gbps if isinstance(nic.rate_gbps, float | int) else 0.0
        for address in nic.addresses:
            network = agent.facts.networks.get(address)
            if network is None or ipaddress.ip_address(address.split("%")[0]).version != 4:
                continue
            kind = "RDMA-capable" if nic.kind == "rdma" else "plain"
            reason = f"{kind}, in {network} like the other VMs'"
            link = Link(nic.name, address, reason)
            candidates.append(_Candidate(link, network, nic.kind == "rdma", rate))
    return candidates


def _shared(candidates: list[list[_Candidate]], reached: set[str]) -> list[Link] | None:
    """Return a link per VM in the best network that all VMs share; None if they share none.

    Parameters
    ----------
    candidates
        The usable interfaces of each VM.
    reached
        The addresses that ssh uses. Among equally good networks, they decide.
    """
    best: tuple[tuple[bool, float, bool], list[Link]] | None = None
    for network in {candidate.network for candidate in candidates[0]}:
        candidates_by_vm = [
            [candidate for candidate in vm_candidates if candidate.network == network]
            for vm_candidates in candidates
        ]
        addresses = {
            candidate.link.address
            for vm_candidates in candidates_by_vm
            for candidate in vm_candidates
        }
        # If two VMs have the same address, it belongs to a private network of each VM, such as the
        # bridge of its containers.
        if not all(candidates_by_vm) or len(addresses) < sum(map(len, candidates_by_vm)):
            continue
        chosen = [
            max(vm_candidates, key=lambda candidate: (candidate.rdma, candidate.rate_gbps))
            for vm_candidates in candidates_by_vm
        ]
        score = (
            all(candidate.rdma for candidate in chosen),
            min(candidate.rate_gbps for candidate in chosen),
            all(candidate.link.address in reached for candidate in chosen),
        )
        if best is None or score > best[0]:
            best = score, [candidate.link for candidate in chosen]
    return best[1] if best else None


def _named(agent: Agent, interface: str) -> Link:
    """Return the link of the interface that the user has named for a VM."""
    if interface == _LOOPBACK.interface:
        return _LOOPBACK
    names = []
    for nic in _nics(agent):
        names.append(nic.name)
        if nic.name != interface or not isinstance(nic.addresses, tuple):
            continue
        addresses = sorted(nic.addresses, key=lambda address: ":" in address)  # IPv4 first
        if addresses:
            return Link(nic.name, addresses[0], "named by the user")
        raise StartFailed(f"interface {interface} has no address", vm=agent.name, fix="give it one")
    raise StartFailed(
        f"interface {interface!r}: not on this VM",
        vm=agent.name,
        fix=f"name one of {', '.join(names)}" if names else "check `ip link` there",
    )


def _routed(agent: Agent, agents: list[Agent]) -> Link:
    """Return the link of a VM's route to another VM."""
    others = [_ssh_address(other) for other in agents if other is not agent]
    targets = [address for address in others if address]
    answers = agent.ask("route", to=targets) if targets else []
    for target, answer in zip(targets, answers, strict=True):
        if answer["source"] and answer["interface"] not in {"", _LOOPBACK.interface}:
            return Link(answer["interface"], answer["source"], f"its route to {target}")
    raise StartFailed(
        f"no route to the other VMs ({', '.join(others)}) was found",
        vm=agent.name,
        fix="name its interface (interface=... in the host file)",
    )


def _ssh_address(agent: Agent) -> str:
    """Return the VM's address in its ssh connection; empty without one."""
    parts = agent.hello.connection.split()
    return parts[2].split("%")[0] if len(parts) == 4 else ""


_INTERFACE_SETTING = "NCCL_SOCKET_IFNAME"


@dataclass(frozen=True)
class Placement:
    """The resources of a rank on its VM.

    Attributes
    ----------
    gpu
        The name of the GPU for users: ``"0 (A100-40C)"``, or ``"CPU"``.
    numa
        The NUMA node of the GPU, or ``"any"``.
    nic
        The interface of the collectives, and the RDMA port nearest to the GPU. NCCL uses all ports
        of the VM, and prefers this port.
    cores
        The cores that the rank may run on; empty for all. Memory is allocated on the same NUMA
        node.
    environment
        The environment variables for this placement. The variables of NCCL are the same for all
        ranks of a VM.
    """

    gpu: str
    numa: str
    nic: str
    cores: tuple[int, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


def snapshot_for_ranks(facts: Facts, environment: Mapping[str, str]) -> Snapshot:
    """Return a VM's snapshot, with the NCCL settings of the ranks' `environment`."""
    snapshot = Snapshot.from_plain(facts.snapshot)
    nccl_variables = {
        name: value for name, value in environment.items() if name.startswith("NCCL_")
    }
    if not nccl_variables:
        return snapshot
    settings = {**settings_of(snapshot), **nccl_variables}
    return replace(snapshot, host=replace(snapshot.host, nccl_settings=settings))


def link_layer(agents: Iterable[Agent]) -> str | None:
    """Return the link layer on which all VMs reach each other over RDMA; None without RDMA."""
    return common_layer(
        Snapshot.from_plain(agent.facts.snapshot) for agent in agents if agent.facts.snapshot
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
    """Return the placement of each rank of a VM.

    Parameters
    ----------
    facts
        The facts that the VM's agent has reported.
    interface
        The network interface of the collectives.
    slots
        The number of ranks on this VM.
    layer
        The link layer of the RDMA ports (`link_layer`).
    environment
        The host file's variables for the ranks of this VM. They are never overwritten.
    visible
        The value of CUDA_VISIBLE_DEVICES that the rank already has: indices or UUIDs of its GPUs.
    """
    snapshot = snapshot_for_ranks(facts, environment or {})
    gpus = usable_gpus(snapshot)
    if visible is not None:
        by_name = {name: gpu for gpu in gpus for name in (str(gpu.index), str(gpu.uuid))}
        gpus = [by_name[name] for name in visible.split(",") if name in by_name]
    if not gpus:
        return [Placement("CPU", "any", interface)] * slots
    nearest = _nearest_ports(snapshot, gpus, layer)
    nccl_variables = _nccl_environment(snapshot, interface, layer)
    placements = []
    for index in (slot % len(gpus) for slot in range(slots)):  # ranks share GPUs if too few
        gpu = gpus[index]
        port = nearest[index]
        node = facts.numa_of.get(str(gpu.pci_address))
        visible_variables = _visible(gpus, gpu, slots) if visible is None else {}
        placements.append(
            Placement(
                gpu=_name(gpu, index),
                numa="any" if node is None else str(node),
                nic=interface if port is None else f"{interface}, {port.rdma_device}",
                cores=() if node is None else tuple(facts.cores_of.get(str(node), ())),
                environment={**visible_variables, **nccl_variables},
            )
        )
    return placements


def usable_gpus(snapshot: Snapshot) -> list[Gpu]:
    """Return the GPUs that processes can use. MIG devices replace the GPU that is divided."""
    divided = {gpu.index for gpu in snapshot.gpus if gpu.form == "mig"}
    return [gpu for gpu in snapshot.gpus if gpu.form == "mig" or gpu.index not in divided]


def _nccl_environment(snapshot: Snapshot, interface: str, layer: str | None) -> dict[str, str]:
    """Return NCCL's settings for all ranks of a VM, except settings of the user."""
    settings = {
        # Without this, NCCL's bootstrap may use another interface.
        _INTERFACE_SETTING: f"={interface}",
        HCA_SETTING: exclusion(snapshot, layer),
    }
    user_settings = settings_of(snapshot)
    return {name: value for name, value in settings.items() if value and name not in user_settings}


def _name(gpu: Gpu, number: int) -> str:
    """Return the name of a GPU for users: its number, and its model if that is known."""
    model = gpu.vgpu_profile if isinstance(gpu.vgpu_profile, str) else gpu.name
    return f"{number} ({model})" if isinstance(model, str) else str(number)


def _visible(gpus: list[Gpu], rank_gpu: Gpu, slots: int) -> dict[str, str]:
    """Return the variables that make ``cuda:slot`` the rank's GPU.

    A process sees at most one MIG device, as ``cuda:0``.
    """
    if not isinstance(rank_gpu.uuid, str):
        return {}
    if rank_gpu.form == "mig":
        return {"CUDA_VISIBLE_DEVICES": rank_gpu.uuid}
    uuids = [gpu.uuid for gpu in gpus[:slots] if isinstance(gpu.uuid, str)]
    return {"CUDA_VISIBLE_DEVICES": ",".join(uuids)}


def _nearest_ports(snapshot: Snapshot, gpus: list[Gpu], layer: str | None) -> list[Nic | None]:
    """Return the nearest RDMA port of each GPU. Equally near ports are distributed evenly.

    If no distance is known, the port is None, unless there is only one port.
    """
    ports = ports_in_use(snapshot, layer)
    use_counts: Counter[int] = Counter()
    nearest: list[Nic | None] = []
    for gpu in gpus:
        distances = [snapshot.distance(gpu, port) for port in ports]
        known_distances = [distance for distance in distances if isinstance(distance, Distance)]
        nearest_indices = [
            index
            for index, distance in enumerate(distances)
            if known_distances and distance == min(known_distances)
        ]
        if not nearest_indices and len(ports) == 1:
            nearest_indices = [0]
        chosen = min(nearest_indices, key=lambda index: use_counts[index], default=None)
        use_counts.update([] if chosen is None else [chosen])
        nearest.append(None if chosen is None else ports[chosen])
    return nearest
