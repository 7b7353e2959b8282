"""VMs on which NCCL uses different sets of RDMA ports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from workbench.doctor.across.odd import odd
from workbench.doctor.finding import Finding
from workbench.doctor.reading import is_topology_file, is_unknown
from workbench.resources import Nic, Snapshot, Unknown
from workbench.resources.nccl_ports import (
    active_ports,
    common_layer,
    ports_in_use,
    settings_of,
    tcp_only,
)
from workbench.resources.nccl_settings import is_on

_IGNORE = "NCCL_IGNORE_NET_MISMATCH"


def nic_sets_unlike(snapshots: Mapping[str, Snapshot]) -> Iterator[Finding]:
    """Find VMs where as many ports are active, and NCCL uses others, or in another order."""
    told = {vm: one for vm, one in snapshots.items() if _is_known(one)}
    layer = common_layer(told.values())
    active = {sum(port.link_layer == layer for port in active_ports(one)) for one in told.values()}
    if layer is None or len(active) > 1:
        return  # `rdma_unlike` has found that
    ignored = [vm for vm, one in told.items() if is_on(settings_of(one).get(_IGNORE))]
    for found in odd(told, partial(_ports, layer)):
        silently = f", silently, for {_IGNORE} is set on {', '.join(ignored)}" if ignored else ""
        yield Finding(
            rule="nic_sets_unlike",
            severity="error" if ignored else "warning",
            subject=found.vms,
            evidence=found.evidence,
            why="NCCL pairs the ports of two VMs by their order: a port without its counterpart "
            f"is waited for without end{silently}, or a slow port is paired with a fast one.",
            cure="The same ports in the same order on every VM (`rdma link`), NCCL_IB_HCA the "
            "same or nowhere, and in containers all of /dev/infiniband. Else exclude on each VM "
            "what the others do not have: `NCCL_IB_HCA=^=mlx5_3`.",
            source="NVIDIA/nccl, issues 1277, 1363 and 2428",
        )


def _is_known(snapshot: Snapshot) -> bool:
    """Say whether it is known which ports NCCL can use, and that it may use them."""
    if is_unknown(snapshot, "nics") or is_topology_file(snapshot):
        return False
    states = [nic.state for nic in snapshot.nics if nic.kind == "rdma"]
    unknown = any(isinstance(state, Unknown) for state in states)
    return bool(states) and not unknown and tcp_only(settings_of(snapshot)) is None


def _ports(layer: str, snapshot: Snapshot) -> str:
    ports = ports_in_use(snapshot, layer)
    count = f"{len(ports) or 'no'} RDMA port{'' if len(ports) == 1 else 's'} for NCCL"
    if len(ports) > 1:  # a single one finds its counterpart by any name
        several_rates = len({port.rate_gbps for port in ports}) > 1
        count += f" ({', '.join(_name(port, with_rate=several_rates) for port in ports)})"
    return count + _openable(snapshot)


def _name(port: Nic, *, with_rate: bool) -> str:
    rate = port.rate_gbps if isinstance(port.rate_gbps, float | int) else None
    name = str(port.rdma_device) + ("" if port.rdma_port in (1, 0) else f":{port.rdma_port}")
    return f"{name} at {rate:g} Gb/s" if with_rate and rate is not None else name


def _openable(snapshot: Snapshot) -> str:
    """Write that there are fewer device nodes than devices, as in some containers."""
    nodes = snapshot.host.rdma_device_nodes
    devices = {str(nic.rdma_device) for nic in snapshot.nics if nic.kind == "rdma"}
    if isinstance(nodes, Unknown):
        return ""
    open_ = sum(node.startswith("uverbs") for node in nodes)
    if open_ >= len(devices):
        return ""
    return f", {open_} of {len(devices)} devices below /dev/infiniband"
