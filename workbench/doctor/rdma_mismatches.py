"""Rules about RDMA that must be the same on all VMs: ports, link layers, rates, GPUDirect RDMA."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from workbench.doctor.facts import count, is_unknown
from workbench.doctor.finding import Severity
from workbench.doctor.rule import Case, Read, Rule, mismatch_cases, must_match, rule, summary
from workbench.resources import Nic, Snapshot, Unknown
from workbench.resources.nccl_ports import (
    active_ports,
    common_layer,
    ports_in_use,
    settings_of,
    tcp_only,
)
from workbench.resources.nccl_settings import is_on

_NAME = "rdma_unlike"
_SOURCE = "NVIDIA, NCCL User Guide, Troubleshooting, Networking issues"
_IGNORE_SETTING = "NCCL_IGNORE_NET_MISMATCH"


def _of_each_port(read: Callable[[Nic], str | None]) -> Read:
    """Turn a value of one port into a value of a VM: the values of its active RDMA ports."""

    def read_all(snapshot: Snapshot) -> str | None:
        values = [read(nic) for nic in active_ports(snapshot)]
        return summary(sorted(value for value in values if value is not None))

    return read_all


def _link_layer(nic: Nic) -> str | None:
    return f"RDMA over {nic.link_layer}" if isinstance(nic.link_layer, str) else None


def _rate(nic: Nic) -> str | None:
    return f"{nic.rate_gbps:g} Gb/s" if isinstance(nic.rate_gbps, float | int) else None


def _mtu(nic: Nic) -> str | None:
    return f"MTU {nic.mtu}" if isinstance(nic.mtu, int) else None


def _firmware(nic: Nic) -> str | None:
    if isinstance(nic.firmware, Unknown) or isinstance(nic.hca_type, Unknown):
        return None
    return f"{nic.hca_type} with firmware {nic.firmware}"


def _port_states(snapshot: Snapshot) -> list[object] | None:
    """Return the states of the RDMA ports; None if a state or the list of ports is unknown."""
    if is_unknown(snapshot, "nics") or snapshot.is_topology_file:
        return None
    states: list[object] = [nic.state for nic in snapshot.nics if nic.kind == "rdma"]
    return None if any(isinstance(state, Unknown) for state in states) else states


def _active_ports(snapshot: Snapshot) -> str | None:
    if _port_states(snapshot) is None:
        return None
    return count(len(active_ports(snapshot)), "active RDMA port")


def _gpudirect(snapshot: Snapshot) -> str | None:
    pcie = snapshot.known_pcie
    ports = pcie.rdma_addresses
    pairs = [pair for pair in pcie.gpudirect if pair.nic in ports]
    if not pairs or any(isinstance(pair.possible, Unknown) for pair in pairs):
        return None
    near = {pair.gpu for pair in pairs if pair.possible is True}
    return f"GPUDirect RDMA for {len(near)} of {len({pair.gpu for pair in pairs})} GPUs"


@rule("info", name=_NAME, source=_SOURCE)
def link_layer_mismatch(snapshots: Mapping[str, Snapshot]) -> Iterator[Case]:
    """Compare link layers. The severity depends on the cost: none, speed, or the connection."""
    common = common_layer(snapshots.values())
    for case in mismatch_cases(snapshots, _of_each_port(_link_layer)):
        severity: Severity = "info"
        cost = f"Collectives use {common}, which all VMs have; the other ports are excluded."
        fix = "No change is needed."
        if common is None:
            severity = "error"
            cost = (
                "InfiniBand and RoCE cannot communicate with each other: the ranks find no common "
                "network, or fall back to TCP."
            )
            fix = "Ask for VMs on one fabric, or leave the other VMs out of `--hosts`."
        elif any(common_layer([vm]) not in (None, common) for vm in snapshots.values()):
            severity = "warning"
            cost = (
                f"Collectives use {common}, which all VMs have; the faster ports of some VMs are "
                "not used."
            )
            fix = "Ask for VMs whose fastest ports have the same link layer."
        yield replace(case, severity=severity, why=cost, fix=fix)


def _must_match_on_common_layer(
    severity: Severity,
    read: Read,
    *,
    compared: str,
    why: str,  # language: a field of findings
    fix: str,
) -> Rule[Mapping[str, Snapshot]]:
    """Return the rule that a value of RDMA ports must be the same on all VMs.

    `compared` names the value. Ports that ranks exclude are skipped, such as ports for storage on
    another fabric.
    """

    def check(snapshots: Mapping[str, Snapshot]) -> list[Case]:
        layer = common_layer(snapshots.values())
        return mismatch_cases(
            snapshots, lambda snapshot: read(_without_other_layers(snapshot, layer))
        )

    check.__doc__ = f"Compare {compared}, of the link layer that all VMs have."
    return Rule(_NAME, check, severity, why, fix, _SOURCE)


def _without_other_layers(snapshot: Snapshot, layer: str | None) -> Snapshot:
    if layer is None:
        return snapshot
    nics = (
        nic
        for nic in snapshot.nics
        if nic.kind != "rdma" or not isinstance(nic.link_layer, str) or nic.link_layer == layer
    )
    return replace(snapshot, nics=tuple(nics))


@rule(
    "warning",
    name="nic_sets_unlike",
    fix="The same ports in the same order on every VM (`rdma link`), NCCL_IB_HCA the same or "
    "nowhere, and in containers all of /dev/infiniband. Otherwise exclude on each VM what the "
    "others do not have: `NCCL_IB_HCA=^=mlx5_3`.",
    source="NVIDIA/nccl, issues 1277, 1363 and 2428",
)
def nic_set_mismatch(snapshots: Mapping[str, Snapshot]) -> Iterator[Case]:
    """Find VMs with equal numbers of active ports, but other ports or another order for NCCL."""
    vms = {
        vm: snapshot
        for vm, snapshot in snapshots.items()
        if _port_states(snapshot) and _uses_rdma(snapshot)
    }
    layer = common_layer(vms.values())
    port_counts = {
        sum(port.link_layer == layer for port in active_ports(snapshot))
        for snapshot in vms.values()
    }
    if layer is None or len(port_counts) > 1:
        return  # `rdma_unlike` reports this case
    ignoring = [
        vm for vm, snapshot in vms.items() if is_on(settings_of(snapshot).get(_IGNORE_SETTING))
    ]
    silently = f", without an error, as {_IGNORE_SETTING} is set on {', '.join(ignoring)}"
    for case in mismatch_cases(vms, partial(_nccl_ports, layer)):
        yield replace(
            case,
            severity="error" if ignoring else "warning",
            why="NCCL pairs the ports of two VMs by their order: ranks wait for ever for the peer "
            f"of an unpaired port{silently if ignoring else ''}, or a slow port with a fast "
            "one.",
        )


def _uses_rdma(snapshot: Snapshot) -> bool:
    return tcp_only(settings_of(snapshot)) is None


def _nccl_ports(layer: str, snapshot: Snapshot) -> str:
    ports = ports_in_use(snapshot, layer)
    words = f"{count(len(ports), 'RDMA port')} for NCCL"
    if len(ports) > 1:  # the name of a single port does not matter
        several_rates = len({port.rate_gbps for port in ports}) > 1
        names = ", ".join(_port_name(port, with_rate=several_rates) for port in ports)
        words += f" ({names})"
    return words + _missing_device_nodes(snapshot)


def _port_name(port: Nic, *, with_rate: bool) -> str:
    name = str(port.rdma_device) + ("" if port.rdma_port in (1, 0) else f":{port.rdma_port}")
    rate = _rate(port) if with_rate else None
    return name if rate is None else f"{name} at {rate}"


def _missing_device_nodes(snapshot: Snapshot) -> str:
    """Return a clause if device nodes are missing, as in some containers; otherwise ""."""
    nodes = snapshot.host.rdma_device_nodes
    devices = {str(nic.rdma_device) for nic in snapshot.nics if nic.kind == "rdma"}
    if isinstance(nodes, Unknown):
        return ""
    node_count = sum(node.startswith("uverbs") for node in nodes)
    if node_count >= len(devices):
        return ""
    return f", {node_count} of {len(devices)} devices below /dev/infiniband"


RDMA_MISMATCHES: tuple[Rule[Mapping[str, Snapshot]], ...] = (
    link_layer_mismatch,
    _must_match_on_common_layer(
        "warning",
        _active_ports,
        compared="the numbers of active RDMA ports",
        why="If one VM has no RDMA, or fewer ports, the others fall back to what it has: TCP, or "
        "fewer links. NCCL pairs ports by their order: with one more on one side, ranks may wait "
        "without end (NVIDIA/nccl, issues 1277 and 2428).",
        fix="`ibv_devinfo` and `rdma link` on those VMs; ask the administrator for the missing "
        "port or virtual function.",
    ),
    _must_match_on_common_layer(
        "warning",
        _of_each_port(_rate),
        compared="the rates of the active RDMA ports",
        why="Every collective is as fast as the slowest link in its ring.",
        fix="`ibstat` or `ethtool` on those VMs; ask the administrator to check the cable, the "
        "switch port or the virtual function's rate limit (`ip link show`, max_tx_rate).",
    ),
    _must_match_on_common_layer(
        "warning",
        _of_each_port(_mtu),
        compared="the MTUs of the active RDMA ports",
        why="Over TCP, frames above the smaller MTU are lost; RoCE uses the smaller one for each "
        "connection, and is slower for it.",
        fix="The same on every VM: `sudo ip link set dev INTERFACE mtu 9000`, and on the switch.",
    ),
    _must_match_on_common_layer(
        "info",
        _of_each_port(_firmware),
        compared="the models and firmware versions of the active RDMA ports",
        why="Errors and rates that occur on some VMs only often come from another firmware.",
        fix="`mlxfwmanager --query` on the host of each; ask the administrator for the same "
        "version.",
    ),
    nic_set_mismatch,
    must_match(
        "gpudirect_unlike",
        "warning",
        _gpudirect,
        compared="for how many GPUs GPUDirect RDMA is possible",
        why="Ranks whose GPU has no near port copy every gradient through host memory; all others "
        "wait for them.",
        fix="Compare the matrices of `workbench resources` on those VMs: GPU or port in another "
        "place, another topology file, or NCCL_NET_GDR_LEVEL on one VM only.",
        source="NVIDIA, NCCL User Guide, Environment Variables, NCCL_NET_GDR_LEVEL",
    ),
)
