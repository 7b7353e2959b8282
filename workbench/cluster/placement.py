"""Which GPU and cores each rank of a VM gets, and which NIC is nearest to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from workbench.resources import Distance, Gpu, Nic, Snapshot
from workbench.resources.nccl_ports import (
    HCA_SETTING,
    common_layer,
    exclusion,
    ports_in_use,
    settings_of,
)

if TYPE_CHECKING:
    from workbench.cluster.agent import Agent

_INTERFACE_SETTING = "NCCL_SOCKET_IFNAME"


@dataclass(frozen=True)
class Placement:
    """What one rank uses of its VM.

    Attributes
    ----------
    gpu
        For people: ``"0 (A100-40C)"``, or ``"CPU"``.
    numa
        NUMA node of the GPU, or ``"any"``.
    nic
        The interface of its collectives, and the RDMA port nearest to its GPU. NCCL uses
        all ports of the VM; this one comes first.
    cores
        Cores that it may run on; empty for all. Memory follows: the kernel
        gives a process memory of the node that it runs on.
    environment
        Variables that make it so. NCCL's are the same for all ranks of a VM.
    """

    gpu: str
    numa: str
    nic: str
    cores: tuple[int, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


def snapshot_for_ranks(facts: Mapping[str, Any], environment: Mapping[str, str]) -> Snapshot:
    """Return a VM's snapshot with NCCL's settings as its ranks will have them.

    Parameters
    ----------
    facts
        What the VM's agent reported.
    environment
        Variables that the user gives the ranks of this VM (in the host file).
    """
    snapshot = Snapshot.from_plain(facts["snapshot"])
    given = {name: value for name, value in environment.items() if name.startswith("NCCL_")}
    if not given:
        return snapshot
    settings = {**settings_of(snapshot), **given}
    return replace(snapshot, host=replace(snapshot.host, nccl_settings=settings))


def link_layer(agents: Iterable[Agent]) -> str | None:
    """Return the link layer on which all VMs reach each other over RDMA; None without RDMA."""
    return common_layer(Snapshot.from_plain(one.facts["snapshot"]) for one in agents if one.facts)


def place(
    facts: Mapping[str, Any],
    interface: str,
    slots: int,
    *,
    layer: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[Placement]:
    """Return a placement for each local rank of a VM.

    Parameters
    ----------
    facts
        What the VM's agent reported: ``snapshot``, ``numa_of`` (PCI address to NUMA
        node), ``cores_of`` (NUMA node to cores).
    interface
        Network interface of its collectives.
    slots
        Ranks on this VM.
    layer
        Of the VMs' RDMA ports (`link_layer`).
    environment
        Variables that the user gives the ranks of this VM; none of them is overwritten.
    """
    snapshot = snapshot_for_ranks(facts, environment or {})
    gpus = usable_gpus(snapshot)
    if not gpus:
        return [Placement("CPU", "any", interface)] * slots
    nearest = _nearest_ports(snapshot, gpus, layer)
    common = _nccl_environment(snapshot, interface, layer)
    found = []
    for slot in range(slots):
        number = slot % len(gpus)
        gpu, port = gpus[number], nearest[number]
        node = facts["numa_of"].get(str(gpu.pci_address))
        found.append(
            Placement(
                gpu=_name(gpu, number),
                numa="any" if node is None else str(node),
                nic=interface if port is None else f"{interface}, {port.rdma_device}",
                cores=() if node is None else tuple(facts["cores_of"].get(str(node), ())),
                environment={**_visible(gpus, gpu, slots), **common},
            )
        )
    return found


def usable_gpus(snapshot: Snapshot) -> list[Gpu]:
    """Return what a process can be given: MIG devices in place of a GPU that is cut into them."""
    cut = {gpu.index for gpu in snapshot.gpus if gpu.form == "mig"}
    return [gpu for gpu in snapshot.gpus if gpu.form == "mig" or gpu.index not in cut]


def _nccl_environment(snapshot: Snapshot, interface: str, layer: str | None) -> dict[str, str]:
    """Return NCCL's settings for all ranks of a VM; what the user has set is left alone."""
    wanted = {
        _INTERFACE_SETTING: f"={interface}",  # else its bootstrap may take another one
        HCA_SETTING: exclusion(snapshot, layer),
    }
    own = settings_of(snapshot)
    return {name: value for name, value in wanted.items() if value and name not in own}


def _name(gpu: Gpu, number: int) -> str:
    what = gpu.vgpu_profile if isinstance(gpu.vgpu_profile, str) else gpu.name
    return f"{number} ({what})" if isinstance(what, str) else str(number)


def _visible(gpus: list[Gpu], own: Gpu, slots: int) -> dict[str, str]:
    """Return the variables that let ``cuda:slot`` be the rank's own GPU.

    A slot is the local rank, until one is lost. A process sees one MIG device at
    most; there its own is ``cuda:0``.
    """
    if not isinstance(own.uuid, str):
        return {}
    if own.form == "mig":
        return {"CUDA_VISIBLE_DEVICES": own.uuid}
    uuids = [gpu.uuid for gpu in gpus[:slots] if isinstance(gpu.uuid, str)]
    return {"CUDA_VISIBLE_DEVICES": ",".join(uuids)}


def _nearest_ports(snapshot: Snapshot, gpus: list[Gpu], layer: str | None) -> list[Nic | None]:
    """Return the nearest RDMA port of each GPU; GPUs with the same choice share it out evenly.

    None where no distance is known, unless there is only one port to choose from.
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
