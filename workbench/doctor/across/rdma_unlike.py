"""VMs whose RDMA ports are not like those of the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from workbench.doctor.across.odd import Look, odd, same
from workbench.doctor.finding import Finding, Severity
from workbench.doctor.reading import is_topology_file, is_unknown
from workbench.resources import Nic, Snapshot, Unknown
from workbench.resources.nccl_ports import active_ports

_SLOWEST = "Every collective goes at the pace of the slowest link on its way round."


def rdma_unlike(snapshots: Mapping[str, Snapshot]) -> Iterator[Finding]:
    """Find another number of active ports, link layer, rate, MTU, or firmware."""
    for look, severity, why, cure in _LOOKS:
        for found in odd(snapshots, look):
            yield Finding(
                rule="rdma_unlike",
                severity=severity,
                subject=found.vms,
                evidence=found.evidence,
                why=why,
                cure=cure,
                source="NVIDIA, NCCL User Guide, Troubleshooting, Networking issues",
            )


def _number(snapshot: Snapshot) -> str | None:
    if is_unknown(snapshot, "nics") or is_topology_file(snapshot):
        return None
    if any(nic.kind == "rdma" and isinstance(nic.state, Unknown) for nic in snapshot.nics):
        return None
    count = len(active_ports(snapshot))
    return f"{count or 'no'} active RDMA port{'' if count == 1 else 's'}"


def _each(write: Callable[[Nic], str | None]) -> Look:
    def look(snapshot: Snapshot) -> str | None:
        written = [write(nic) for nic in active_ports(snapshot)]
        return same(sorted(one for one in written if one is not None))

    return look


def _layer(nic: Nic) -> str | None:
    return f"RDMA over {nic.link_layer}" if isinstance(nic.link_layer, str) else None


def _rate(nic: Nic) -> str | None:
    return f"{nic.rate_gbps:g} Gb/s" if isinstance(nic.rate_gbps, float | int) else None


def _mtu(nic: Nic) -> str | None:
    return f"MTU {nic.mtu}" if isinstance(nic.mtu, int) else None


def _firmware(nic: Nic) -> str | None:
    if isinstance(nic.firmware, Unknown) or isinstance(nic.hca_type, Unknown):
        return None
    return f"{nic.hca_type} with firmware {nic.firmware}"


_LOOKS: tuple[tuple[Look, Severity, str, str], ...] = (
    (
        _number,
        "warning",
        (
            "Where one VM has no RDMA, or fewer ports, the others fall back to what it has: TCP, "
            "or fewer links. NCCL pairs ports by their order: with one more on one side, ranks "
            "may wait without end (NVIDIA/nccl, issues 1277 and 2428)."
        ),
        (
            "`ibv_devinfo` and `rdma link` on those VMs; ask the administrator for the missing "
            "port or virtual function."
        ),
    ),
    (
        _each(_layer),
        "error",
        (
            "InfiniBand and RoCE do not speak to each other: the ranks find no common way, or fall "
            "back to TCP."
        ),
        "Ask for VMs on one fabric, or leave the other ones out of `--hosts`.",
    ),
    (
        _each(_rate),
        "warning",
        _SLOWEST,
        (
            "`ibstat` or `ethtool` on those VMs; ask for the cable, the switch port or the virtual "
            "function's rate limit (`ip link show`, max_tx_rate)."
        ),
    ),
    (
        _each(_mtu),
        "warning",
        (
            "Over TCP, frames above the smaller MTU are lost; RoCE takes the smaller one for each "
            "connection, and is slower for it."
        ),
        "The same on every VM: `sudo ip link set dev INTERFACE mtu 9000`, and on the switch.",
    ),
    (
        _each(_firmware),
        "info",
        "Errors and rates that are seen on some VMs only often come from another firmware.",
        "`mlxfwmanager --query` on the host of each; ask the administrator for the same version.",
    ),
)
