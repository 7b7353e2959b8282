"""Whether collectives are carried as the VMs' hardware allows: RDMA, and GPUDirect RDMA."""

from __future__ import annotations

import math
from collections.abc import Iterator

from workbench.advisor.evidence import Evidence
from workbench.ranks import phrase
from workbench.resources.nccl_ports import active_ports, settings_of, tcp_only
from workbench.resources.nics.records import Nic
from workbench.resources.snapshot import Snapshot
from workbench.timings.verdict import Cause
from workbench.wire.transport import Transport

_GLOO_CURE = (
    "Gloo uses TCP only: train on GPUs with NCCL (%cluster start --backend ddp, or Horovod built "
    "with NCCL), or on CPUs with Horovod built with MPI"
)
_SETTING_CURE = "remove {}={} from the environment of the ranks"
_NCCL_CURE = (
    "let the ranks use /dev/infiniband and lock memory (%doctor shows both), and check NCCL's log: "
    "NCCL_DEBUG=INFO"
)
_DIRECT_CURE = (
    "load nvidia-peermem, or use the open kernel modules (DMA-BUF), and allow peer-to-peer access "
    "between GPU and NIC in the VM (%doctor shows both)"
)


def transport_causes(evidence: Evidence) -> Iterator[Cause]:
    """Yield transports that are slower than the hardware allows."""
    summary, reported, infos = evidence.summary, evidence.transports, evidence.ranks
    if not any(one.network for ones in reported.values() for one in ones):
        return
    if len({info.vm for info in infos}) < 2 or not summary.exposed_us > 0:
        return
    saving = min(summary.exposed_us, summary.transfer_us)  # also where the second is unknown
    if math.isnan(summary.transfer_us):
        saving = summary.exposed_us
    slow: dict[tuple[str, str, str], list[int]] = {}
    for info in infos:
        for one in _carrying(reported.get(info.rank, ())):
            found = _slower(one, evidence.snapshots.get(info.vm))
            if found is not None:
                slow.setdefault(found, []).append(info.rank)
    for (name, text, cure), ranks in slow.items():
        yield evidence.cause(name, f"{phrase(ranks)}: {text}", cure, saving, bound=True)


def _carrying(transports: tuple[Transport, ...]) -> list[Transport]:
    """Return those that carry gradients: NCCL where it is used, since it carries those of GPUs."""
    nccl = [one for one in transports if one.library == "NCCL"]
    return [one for one in nccl or transports if one.network]


def _slower(one: Transport, snapshot: Snapshot | None) -> tuple[str, str, str] | None:
    """Return the name of the cause, the evidence and the cure; None if it is none."""
    device = " ".join(one.devices)
    if one.network == "TCP":
        ports = [] if snapshot is None else active_ports(snapshot)
        if snapshot is None or not ports:
            return None
        evidence = f"{one.library} uses TCP over {device}, although {_names(ports)} is active"
        setting = tcp_only(settings_of(snapshot))
        cure = _GLOO_CURE if one.library == "Gloo" else _NCCL_CURE
        if one.library == "NCCL" and setting is not None:
            cure = _SETTING_CURE.format(*setting)
        return "TCP where RDMA is active", evidence, cure
    if one.library == "NCCL" and one.gpudirect in {"none", "some"}:
        part = "none" if one.gpudirect == "none" else "only some"
        evidence = (
            f"{part} of the connections over {one.network} {device} use GPUDirect RDMA: the "
            "others copy gradients through the memory of the CPU"
        )
        return "no GPUDirect RDMA", evidence, _DIRECT_CURE
    return None


def _names(ports: list[Nic]) -> str:
    return ", ".join(f"{port.rdma_device}:{port.rdma_port} ({port.link_layer})" for port in ports)
