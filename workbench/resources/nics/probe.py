"""Probe the NICs: RDMA ports and plain interfaces, from sysfs."""

from __future__ import annotations

from pathlib import Path

import psutil

from workbench.resources.files import children, link_name, pci_folder, read_int, read_text
from workbench.resources.nics.rdma import RdmaPort, rdma_ports
from workbench.resources.nics.records import Nic
from workbench.resources.unknown import Unknown

# if_arp.h
_LOOPBACK = 772
_LINK_LAYERS = {1: "Ethernet", 32: "InfiniBand"}


def probe_nics(sysfs: Path) -> tuple[Nic, ...]:
    """Return RDMA ports, then interfaces without RDMA, except loopback."""
    ports = rdma_ports(sysfs)
    taken = {port.interface for port in ports}
    addresses = _addresses(sysfs)
    plain = [x for x in interfaces(sysfs) if x.name not in taken]
    bonds = {port.interface: port.device for port in ports if port.interface}
    return (
        *(_rdma_nic(sysfs, port, addresses) for port in ports),
        *(_plain_nic(folder, bonds, addresses) for folder in plain),
    )


def interfaces(sysfs: Path) -> list[Path]:
    """Return the folders of all network interfaces except loopback."""
    return [x for x in children(sysfs / "class/net") if (x / "type").exists() and not _is_lo(x)]


def port_name(port: RdmaPort) -> str:
    """Return the name of an RDMA port's NIC: its interface, or else the device."""
    if port.interface is not None:
        return port.interface
    return port.device if port.number == 1 else f"{port.device}/{port.number}"


def _is_lo(folder: Path) -> bool:
    return read_int(folder / "type") == _LOOPBACK


def _rdma_nic(sysfs: Path, port: RdmaPort, addresses: dict[str, tuple[str, ...]] | Unknown) -> Nic:
    no_interface = Unknown(f"{port.device} has no network interface in this VM")
    interface = sysfs / "class/net" / port.interface if port.interface else None
    return Nic(
        name=port_name(port),
        kind="rdma",
        rdma_device=port.device,
        rdma_port=port.number,
        hca_type=read_text(port.folder / "hca_type"),
        firmware=read_text(port.folder / "fw_ver"),
        driver=link_name(port.folder / "device/driver"),
        link_layer=port.link_layer(),
        rate_gbps=port.rate_gbps(),
        state=port.state(),
        mtu=read_int(interface / "mtu") if interface else no_interface,
        addresses=_addresses_of(interface.name, addresses) if interface else no_interface,
        gids=port.gids,
        numa_node=_numa_node(port.folder / "device"),
        pci_address=_pci_address(port.folder / "device"),
    )


def _plain_nic(
    folder: Path, bonds: dict[str, str], addresses: dict[str, tuple[str, ...]] | Unknown
) -> Nic:
    no_rdma = Unknown(_why_no_rdma(folder, bonds))
    link_type = read_int(folder / "type")
    return Nic(
        name=folder.name,
        kind="physical" if (folder / "device").exists() else "virtual",
        rdma_device=no_rdma,
        rdma_port=no_rdma,
        hca_type=no_rdma,
        firmware=Unknown("sysfs only has it for RDMA devices"),
        driver=_driver(folder),
        link_layer=link_type
        if isinstance(link_type, Unknown)
        else _LINK_LAYERS.get(link_type, f"type {link_type}"),
        rate_gbps=_speed_gbps(folder),
        state=read_text(folder / "operstate"),
        mtu=read_int(folder / "mtu"),
        addresses=_addresses_of(folder.name, addresses),
        gids=(),
        numa_node=_numa_node(folder / "device"),
        pci_address=_pci_address(folder / "device"),
    )


def _why_no_rdma(folder: Path, bonds: dict[str, str]) -> str:
    bond = link_name(folder / "master")
    if isinstance(bond, str) and bond in bonds:
        return f"part of {bond}, whose RDMA device is {bonds[bond]}"
    return "plain NIC: no RDMA device"


def _driver(folder: Path) -> str | Unknown:
    if (folder / "bonding").is_dir():
        return "bonding"
    if not (folder / "device").exists():
        return Unknown("virtual interface: it has no device")
    return link_name(folder / "device/driver")


def _speed_gbps(folder: Path) -> float | Unknown:
    # Reading fails while the link is down; virtio reports -1 unless the host sets a speed.
    megabits = read_int(folder / "speed")
    if isinstance(megabits, Unknown) or megabits < 0:
        return Unknown("the driver reports no speed")
    return megabits / 1000


def _numa_node(device: Path) -> int | Unknown:
    folder = pci_folder(device)
    if folder is None:
        return Unknown("not a PCI device")
    node = read_int(folder / "numa_node")
    if node == -1:
        return Unknown("the kernel knows no NUMA node for it (-1), as usual in a VM")
    return node


def _pci_address(device: Path) -> str | Unknown:
    folder = pci_folder(device)
    return Unknown("not a PCI device") if folder is None else folder.name


def _addresses(sysfs: Path) -> dict[str, tuple[str, ...]] | Unknown:
    if sysfs != Path("/sys"):
        return Unknown("sysfs has no addresses, and this sysfs is not that of this machine")
    found = psutil.net_if_addrs()
    return {
        name: tuple(x.address for x in entries if x.family.name in ("AF_INET", "AF_INET6"))
        for name, entries in found.items()
    }


def _addresses_of(
    name: str, addresses: dict[str, tuple[str, ...]] | Unknown
) -> tuple[str, ...] | Unknown:
    return addresses if isinstance(addresses, Unknown) else addresses.get(name, ())
