"""Find transports that are slower than the VMs' hardware allows: no RDMA, or no GPUDirect RDMA."""

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

_GLOO_FIX = (
    "Gloo uses TCP only: train on GPUs with NCCL (%cluster start --backend ddp, or Horovod built "
    "with NCCL), or on CPUs with Horovod built with MPI"
)
_SETTING_FIX = "remove {}={} from the environment of the ranks"
_NCCL_FIX = (
    "let the ranks use /dev/infiniband and lock memory (%doctor shows both), and check NCCL's log: "
    "NCCL_DEBUG=INFO"
)
_DIRECT_FIX = (
    "load nvidia-peermem, or use the open kernel modules (DMA-BUF), and allow peer-to-peer access "
    "between GPU and NIC in the VM (%doctor shows both)"
)


def transport_causes(evidence: Evidence) -> Iterator[Cause]:
    """Yield transports that are slower than the hardware allows."""
    summary = evidence.summary
    reported = evidence.transports
    infos = evidence.ranks
    if not any(transport.network for of_rank in reported.values() for transport in of_rank):
        return
    if len({info.vm for info in infos}) < 2 or not summary.exposed_us > 0:
        return
    saving = min(summary.exposed_us, summary.transfer_us)
    if math.isnan(summary.transfer_us):
        saving = summary.exposed_us
    slow: dict[tuple[str, str, str], list[int]] = {}
    for info in infos:
        for transport in _carrying(reported.get(info.rank, ())):
            texts = _slower(transport, evidence.snapshots.get(info.vm))
            if texts is not None:
                slow.setdefault(texts, []).append(info.rank)
    for (name, text, fix), ranks in slow.items():
        yield evidence.cause(name, f"{phrase(ranks)}: {text}", fix, saving, bound=True)


def _carrying(transports: tuple[Transport, ...]) -> list[Transport]:
    """Return the transports of gradients: only NCCL if it is used, as it carries GPU gradients."""
    nccl = [transport for transport in transports if transport.library == "NCCL"]
    return [transport for transport in nccl or transports if transport.network]


def _slower(transport: Transport, snapshot: Snapshot | None) -> tuple[str, str, str] | None:
    """Return the name of the cause, the evidence and the fix; None for a fast transport."""
    device = " ".join(transport.devices)
    if transport.network == "TCP":
        ports = [] if snapshot is None else active_ports(snapshot)
        if snapshot is None or not ports:
            return None
        evidence = f"{transport.library} uses TCP over {device}, although {_names(ports)} is active"
        setting = tcp_only(settings_of(snapshot))
        fix = _GLOO_FIX if transport.library == "Gloo" else _NCCL_FIX
        if transport.library == "NCCL" and setting is not None:
            fix = _SETTING_FIX.format(*setting)
        return "TCP where RDMA is active", evidence, fix
    if transport.library == "NCCL" and transport.gpudirect in {"none", "some"}:
        part = "none" if transport.gpudirect == "none" else "only some"
        evidence = (
            f"{part} of the connections over {transport.network} {device} use GPUDirect RDMA: the "
            "others copy gradients through the memory of the CPU"
        )
        return "no GPUDirect RDMA", evidence, _DIRECT_FIX
    return None


def _names(ports: list[Nic]) -> str:
    return ", ".join(f"{port.rdma_device}:{port.rdma_port} ({port.link_layer})" for port in ports)
