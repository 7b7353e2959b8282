"""Which GPU, cores and NIC each rank of a VM gets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from workbench.resources import Gpu, Nic, Snapshot


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
        The interface of its collectives, and the RDMA device nearest its GPU.
    cores
        Cores that it may run on; empty for all. Memory follows: the kernel
        gives a process memory of the node that it runs on.
    environment
        Variables that make it so.
    """

    gpu: str
    numa: str
    nic: str
    cores: tuple[int, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


def place(facts: dict[str, Any], interface: str, slots: int) -> list[Placement]:
    """Return a placement for each local rank of a VM.

    Parameters
    ----------
    facts
        What the VM's agent told: ``snapshot``, ``numa_of`` (PCI address to NUMA
        node), ``cores_of`` (NUMA node to cores).
    interface
        Where its collectives go.
    slots
        Ranks on this VM.
    """
    snapshot = Snapshot.from_plain(facts["snapshot"])
    gpus = _usable(snapshot.gpus)
    if not gpus:
        return [Placement("CPU", "any", interface)] * slots
    return [_on_gpu(facts, snapshot, gpus, interface, slot, slots) for slot in range(slots)]


def _usable(gpus: tuple[Gpu, ...]) -> list[Gpu]:
    """Return what a process can be given: a GPU cut into MIG devices is none itself."""
    cut = {gpu.index for gpu in gpus if gpu.form == "mig"}
    return [gpu for gpu in gpus if gpu.form == "mig" or gpu.index not in cut]


def _on_gpu(
    facts: dict[str, Any],
    snapshot: Snapshot,
    gpus: list[Gpu],
    interface: str,
    slot: int,
    slots: int,
) -> Placement:
    gpu = gpus[slot % len(gpus)]
    node = facts["numa_of"].get(str(gpu.pci_address))
    nic = _nearest(snapshot.nics, node)
    environment = _visible(gpus, gpu, slots)
    if nic is not None:
        environment["NCCL_IB_HCA"] = f"={nic.rdma_device}:{nic.rdma_port}"
    what = gpu.vgpu_profile if isinstance(gpu.vgpu_profile, str) else gpu.name
    cores = facts["cores_of"].get(str(node), ()) if node is not None else ()
    return Placement(
        gpu=f"{slot % len(gpus)} ({what})" if isinstance(what, str) else str(slot % len(gpus)),
        numa="any" if node is None else str(node),
        nic=f"{interface}, {nic.rdma_device}" if nic is not None else interface,
        cores=tuple(cores),
        environment=environment,
    )


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


def _nearest(nics: tuple[Nic, ...], node: int | None) -> Nic | None:
    """Return the RDMA port on the GPU's NUMA node, if there is one that is active."""
    ports = [nic for nic in nics if nic.kind == "rdma" and nic.state == "active"]
    near = [nic for nic in ports if node is not None and nic.numa_node == node]
    return near[0] if near else None
