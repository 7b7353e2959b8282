"""VMs whose RDMA ports are not like those of the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from workbench.doctor.across.odd import Look, Odd, odd, same
from workbench.doctor.finding import Finding, Severity
from workbench.doctor.reading import is_topology_file, is_unknown
from workbench.resources import Nic, Snapshot, Unknown
from workbench.resources.nccl_ports import active_ports, common_layer

_APART = (
    "InfiniBand and RoCE do not speak to each other: the ranks find no common way, or fall back "
    "to TCP."
)
_APART_CURE = "Ask for VMs on one fabric, or leave the other ones out of `--hosts`."
_SLOWEST = "Every collective goes at the pace of the slowest link on its way round."


def rdma_unlike(snapshots: Mapping[str, Snapshot]) -> Iterator[Finding]:
    """Find another link layer; among ports of the one all share another number, rate, MTU..."""
    yield from _layers(snapshots)
    layer = common_layer(snapshots.values())
    compared = {vm: _of_layer(one, layer) for vm, one in snapshots.items()}
    for look, severity, why, cure in _LOOKS:
        for found in odd(compared, look):
            yield _finding(found, severity, why, cure)


def _finding(found: Odd, severity: Severity, why: str, cure: str) -> Finding:
    return Finding(
        rule="rdma_unlike",
        severity=severity,
        subject=found.vms,
        evidence=found.evidence,
        why=why,
        cure=cure,
        source="NVIDIA, NCCL User Guide, Troubleshooting, Networking issues",
    )


def _layers(snapshots: Mapping[str, Snapshot]) -> Iterator[Finding]:
    common = common_layer(snapshots.values())
    for found in odd(snapshots, _each(_layer)):
        if common is None:
            yield _finding(found, "error", _APART, _APART_CURE)
        elif any(common_layer([one]) not in (None, common) for one in snapshots.values()):
            why = (
                f"Collectives take {common}, which all have; the faster ports of some stay unused."
            )
            yield _finding(found, "warning", why, "Ask for VMs whose fastest ports are alike.")
        else:
            why = f"Collectives take {common}, which all have; the other ports are excluded."
            yield _finding(found, "info", why, "Nothing is wrong with it.")


def _of_layer(snapshot: Snapshot, layer: str | None) -> Snapshot:
    """Leave out ports that ranks exclude, such as those for storage on another fabric."""
    used = (nic for nic in snapshot.nics if layer is None or not _is_other(nic, layer))
    return replace(snapshot, nics=tuple(used))


def _is_other(nic: Nic, layer: str) -> bool:
    rdma = nic.kind == "rdma" and isinstance(nic.link_layer, str)
    return rdma and nic.link_layer != layer


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
