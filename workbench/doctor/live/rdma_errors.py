"""RDMA ports that lose packets, or send them again, at this moment."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.doctor.finding import Finding
from workbench.resources import Snapshot, Unknown
from workbench.resources.usage import NicUse, Sample

_LOST = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "out_of_buffer",
)
_LINK = ("port_rcv_errors", "symbol_error", "link_downed", "link_error_recovery")
_LEAST_PER_S = 1.0  # one now and then is nothing


def rdma_errors(_snapshot: Snapshot, sample: Sample) -> Iterator[Finding]:
    """Find ports whose counters of lost packets or of bad signal rise by one a second or more."""
    for nic in sample.nics:
        lost, link = (_rising(nic, names) for names in (_LOST, _LINK))
        if not lost and not link:
            continue
        yield Finding(
            rule="rdma_errors",
            severity="warning",
            subject=nic.name,
            evidence=", ".join([*lost, *link]),
            why="A bad signal on the way: packets are sent again, and the link may go down."
            if link
            else "Lost packets: RDMA sends all from the lost one on again, and every rank waits.",
            cure="Ask for the cable and the transceiver (`mlxlink -d DEVICE -c -e` on the host)."
            if link
            else "On RoCE, PFC or ECN on every switch and port of the way: `mlnx_qos -i INTERFACE` "
            "shows what the port does; on InfiniBand ask for the fabric's counters.",
            source="NVIDIA, Understanding mlx5 Linux counters and status parameters",
        )


def _rising(nic: NicUse, names: tuple[str, ...]) -> list[str]:
    errors = {} if isinstance(nic.errors, Unknown) else nic.errors
    rates = {name: errors[name] for name in names if name in errors}
    return [
        f"{name} {rate:.0f}/s"
        for name, rate in rates.items()
        if not isinstance(rate, Unknown) and rate >= _LEAST_PER_S
    ]
