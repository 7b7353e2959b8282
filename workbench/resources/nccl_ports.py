"""Determine which RDMA ports NCCL uses in a VM, by its rules and settings.

All ranks of a VM must see the same ports (NVIDIA/nccl#1478), and each rank uses all of them.
Therefore a setting excludes ports for all ranks of a VM. Ports are not assigned to ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from workbench.resources.nccl_settings import is_on
from workbench.resources.nics.records import Nic
from workbench.resources.snapshot import Snapshot

HCA_SETTING = "NCCL_IB_HCA"
_LAYERS = ("Ethernet", "InfiniBand")
"""Link layers. They are not connected to each other; the last one is preferred."""


def settings_of(snapshot: Snapshot) -> Mapping[str, str]:
    """Return NCCL's settings in a VM; empty if they are unknown."""
    settings = snapshot.host.nccl_settings
    return settings if isinstance(settings, Mapping) else {}


def tcp_only(settings: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the setting (name and value) that restricts NCCL to TCP; None if there is none."""
    disabled = settings.get("NCCL_IB_DISABLE")
    net = settings.get("NCCL_NET")
    if disabled is not None and is_on(disabled):
        return "NCCL_IB_DISABLE", disabled
    if net is not None and net.lower() == "socket":
        return "NCCL_NET", net
    return None


def active_ports(snapshot: Snapshot) -> list[Nic]:
    """Return the RDMA ports with an active link."""
    return [nic for nic in snapshot.nics if nic.kind == "rdma" and nic.state == "active"]


def ports_in_use(snapshot: Snapshot, layer: str | None = None) -> list[Nic]:
    """Return the ports that NCCL uses in a VM.

    Parameters
    ----------
    layer
        Link layer of the collectives (see `common_layer`), which applies if the VM's settings
        do not choose ports; None for any.
    """
    settings = settings_of(snapshot)
    if tcp_only(settings):
        return []
    chosen = settings.get(HCA_SETTING)
    if chosen is not None:
        return [port for port in active_ports(snapshot) if _is_allowed(port, chosen)]
    excluded = ports_to_exclude(snapshot, layer)
    return [port for port in active_ports(snapshot) if port not in excluded]


def ports_to_exclude(snapshot: Snapshot, layer: str | None = None) -> list[Nic]:
    """Return the ports to avoid: first those on another fabric, then inactive ones."""
    other_fabric = [
        port
        for port in active_ports(snapshot)
        if layer is not None and port.link_layer in _LAYERS and port.link_layer != layer
    ]
    down = [
        nic
        for nic in snapshot.nics
        if nic.kind == "rdma" and isinstance(nic.state, str) and nic.state != "active"
    ]
    return [*other_fabric, *down]


def exclusion(snapshot: Snapshot, layer: str | None = None) -> str | None:
    """Return the value of NCCL_IB_HCA that excludes the ports to avoid; None without such ports."""
    excluded = ports_to_exclude(snapshot, layer)
    others = {nic.rdma_device for nic in snapshot.nics if nic not in excluded}
    names = [
        f"{port.rdma_device}:{port.rdma_port}" if port.rdma_device in others else port.rdma_device
        for port in excluded
        if isinstance(port.rdma_device, str)
    ]
    return f"^={','.join(str(name) for name in dict.fromkeys(names))}" if names else None


def common_layer(snapshots: Iterable[Snapshot]) -> str | None:
    """Return the link layer that all VMs with RDMA have; None if they have no common layer.

    If both layers are common, return the faster one, by the VM with the least bandwidth on it:
    the other one is for storage or management.
    """
    vm_rates: list[dict[str, float]] = []
    for snapshot in snapshots:
        gbps_of_layer: dict[str, float] = {}
        for port in active_ports(snapshot):
            if port.link_layer in _LAYERS:
                gbps = port.rate_gbps if isinstance(port.rate_gbps, float | int) else 0.0
                layer = str(port.link_layer)
                gbps_of_layer[layer] = gbps_of_layer.get(layer, 0.0) + gbps
        if gbps_of_layer:
            vm_rates.append(gbps_of_layer)
    common = set.intersection(*map(set, vm_rates)) if vm_rates else set()
    return max(
        common,
        key=lambda layer: (min(rates[layer] for rates in vm_rates), _LAYERS.index(layer)),
        default=None,
    )


def _is_allowed(port: Nic, value: str) -> bool:
    """Return whether NCCL_IB_HCA allows a port: ``^`` excludes, ``=`` matches exactly."""
    text = value
    excludes = text.startswith("^")
    text = text[1:] if excludes else text
    exact = text.startswith("=")
    entries = [entry for entry in text.removeprefix("=").split(",") if entry]
    matched = any(_matches(port, entry, exact=exact) for entry in entries)
    return matched != excludes if entries else True


def _matches(port: Nic, entry: str, *, exact: bool) -> bool:
    name, colon, number = entry.partition(":")
    device = str(port.rdma_device)
    named = device == name if exact else device.startswith(name)
    return named and (not colon or number == str(port.rdma_port))
