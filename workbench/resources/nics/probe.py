"""Probe the NICs: RDMA ports and interfaces without RDMA, from sysfs."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from workbench.resources.files import children, link_name, pci_folder, read_int, read_text
from workbench.resources.nics.records import Gid, Nic
from workbench.resources.numa import numa_node
from workbench.resources.unknown import Unknown

_Addresses = dict[str, tuple[tuple[str, str | None], ...]] | Unknown
"""IP addresses and netmasks of each interface."""

_UNSET_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
_RATE = re.compile(r"([\d.]+)\s*Gb/sec")
WORD_BYTES = 4
"""``port_xmit_data`` and ``port_rcv_data`` count words of four bytes (InfiniBand specification)."""
# if_arp.h
_LOOPBACK = 772
_LINK_LAYERS = {1: "Ethernet", 32: "InfiniBand"}


@dataclass(frozen=True)
class RdmaPort:
    """One port of one RDMA device.

    Attributes
    ----------
    device, number
        Such as ``"mlx5_0"`` and 1.
    folder
        Folder of the device in sysfs.
    gids
        The entries of the GID table that are set.
    interface
        The network interface of this port; None if it has no interface.
    """

    device: str
    number: int
    folder: Path
    gids: tuple[Gid, ...]
    interface: str | None

    @property
    def port_folder(self) -> Path:
        """Folder of the port in sysfs."""
        return self.folder / "ports" / str(self.number)

    def link_layer(self) -> str | Unknown:
        """Return ``"InfiniBand"`` or ``"Ethernet"``."""
        return read_text(self.port_folder / "link_layer")

    def rate_gbps(self) -> float | Unknown:
        """Return the current rate of the link: ``400 Gb/sec (4X NDR)`` is 400."""
        text = read_text(self.port_folder / "rate")
        if isinstance(text, Unknown):
            return text
        match = _RATE.match(text)
        return float(match[1]) if match else Unknown(f"the port's rate reads {text[:40]!r}")

    def state(self) -> str | Unknown:
        """Return the logical state: ``4: ACTIVE`` is ``"active"``."""
        text = read_text(self.port_folder / "state")
        return text if isinstance(text, Unknown) else text.partition(":")[2].strip().lower() or text

    def no_counters(self) -> Unknown | None:
        """Return why this port cannot be measured; None if it can."""
        return None if (self.port_folder / "counters").is_dir() else Unknown(self._no_counters())

    def _no_counters(self) -> str:
        hca_type = read_text(self.folder / "hca_type")
        if isinstance(hca_type, str) and hca_type.startswith("VMW_PVRDMA"):
            return "no counters for PVRDMA: its driver has none"
        return f"the driver of {self.device} has no counters"


def rdma_ports(sysfs: Path) -> list[RdmaPort]:
    """Return every port of every RDMA device, ordered by name."""
    return [
        _port(device, int(port.name))
        for device in children(sysfs / "class/infiniband")
        for port in children(device / "ports")
        if port.name.isdigit()
    ]


def _port(device: Path, number: int) -> RdmaPort:
    gids = tuple(_gids(device / "ports" / str(number)))
    return RdmaPort(
        device=device.name,
        number=number,
        folder=device,
        gids=gids,
        interface=_interface(device, number, gids),
    )


def _gids(port: Path) -> Iterator[Gid]:
    for entry in children(port / "gids"):
        gid = read_text(entry)
        # An entry that is not set is zero, or cannot be read.
        if isinstance(gid, str) and gid not in ("", _UNSET_GID):
            yield Gid(
                index=int(entry.name),
                gid=gid,
                type=read_text(port / "gid_attrs/types" / entry.name),
                interface=read_text(port / "gid_attrs/ndevs" / entry.name),
            )


def _interface(device: Path, number: int, gids: tuple[Gid, ...]) -> str | None:
    # The GID table contains the interface that carries the traffic, such as a bond;
    # device/net would list one of the bond's members.
    for gid in gids:
        if isinstance(gid.interface, str):
            return gid.interface.split("@")[0]
    interfaces = children(device / "device/net")
    if len(interfaces) == 1:
        return interfaces[0].name
    for interface in interfaces:  # a PCI function with several ports numbers them from 0
        if read_int(interface / "dev_port") == number - 1:
            return interface.name
    return None


def probe_nics(sysfs: Path) -> tuple[Nic, ...]:
    """Return RDMA ports, then the interfaces without RDMA, except loopback."""
    ports = rdma_ports(sysfs)
    rdma_interfaces = {port.interface for port in ports}
    addresses = _addresses(sysfs)
    plain = [folder for folder in interfaces(sysfs) if folder.name not in rdma_interfaces]
    bonds = {port.interface: port.device for port in ports if port.interface}
    return (
        *(_rdma_nic(sysfs, port, addresses) for port in ports),
        *(_plain_nic(folder, bonds, addresses) for folder in plain),
    )


def interfaces(sysfs: Path) -> list[Path]:
    """Return the folders of all network interfaces except loopback."""
    folders = ((folder, folder / "type") for folder in children(sysfs / "class/net"))
    return [folder for folder, kind in folders if kind.exists() and read_int(kind) != _LOOPBACK]


def port_name(port: RdmaPort) -> str:
    """Return the name of an RDMA port's NIC: its interface, or else its device."""
    if port.interface is not None:
        return port.interface
    return port.device if port.number == 1 else f"{port.device}/{port.number}"


def _rdma_nic(sysfs: Path, port: RdmaPort, addresses: _Addresses) -> Nic:
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
        networks=_networks_of(interface.name, addresses) if interface else no_interface,
    )


def _plain_nic(folder: Path, bonds: dict[str, str], addresses: _Addresses) -> Nic:
    no_rdma = Unknown(_no_rdma_reason(folder, bonds))
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
        networks=_networks_of(folder.name, addresses),
    )


def _no_rdma_reason(folder: Path, bonds: dict[str, str]) -> str:
    bond = link_name(folder / "master")
    if isinstance(bond, str) and bond in bonds:
        return f"member of {bond}, whose RDMA device is {bonds[bond]}"
    return "plain NIC: no RDMA device"


def _driver(folder: Path) -> str | Unknown:
    if (folder / "bonding").is_dir():
        return "bonding"
    if not (folder / "device").exists():
        return Unknown("virtual interface: it has no device")
    return link_name(folder / "device/driver")


def _speed_gbps(folder: Path) -> float | Unknown:
    # Reading fails while the link is down; virtio reports -1 unless the hypervisor sets a speed.
    megabits = read_int(folder / "speed")
    if isinstance(megabits, Unknown) or megabits < 0:
        return Unknown("the driver reports no speed")
    return megabits / 1000


def _numa_node(device: Path) -> int | Unknown:
    folder = pci_folder(device)
    return Unknown("not a PCI device") if folder is None else numa_node(folder)


def _pci_address(device: Path) -> str | Unknown:
    folder = pci_folder(device)
    return Unknown("not a PCI device") if folder is None else folder.name


def _addresses(sysfs: Path) -> _Addresses:
    if sysfs != Path("/sys"):
        return Unknown("sysfs has no addresses, and this sysfs is not that of this machine")
    interface_addresses = psutil.net_if_addrs()
    return {
        name: tuple(
            (entry.address, entry.netmask)
            for entry in entries
            if entry.family.name in ("AF_INET", "AF_INET6")
        )
        for name, entries in interface_addresses.items()
    }


def _addresses_of(name: str, addresses: _Addresses) -> tuple[str, ...] | Unknown:
    if isinstance(addresses, Unknown):
        return addresses
    return tuple(address for address, _ in addresses.get(name, ()))


def _networks_of(name: str, addresses: _Addresses) -> tuple[str, ...] | Unknown:
    if isinstance(addresses, Unknown):
        return addresses
    return ipv4_networks(addresses.get(name, ()))


def ipv4_networks(addresses: Iterable[tuple[str, str | None]]) -> tuple[str, ...]:
    """Return the networks of IPv4 addresses with their netmasks, each once.

    Examples
    --------
    >>> ipv4_networks([("10.0.0.7", "255.255.255.0"), ("fe80::1", "ffff::")])
    ('10.0.0.0/24',)
    """
    networks = []
    for address, mask in addresses:
        if mask is not None and ":" not in address:
            with suppress(ValueError):  # a netmask such as 255.0.255.0 makes no network
                networks.append(str(ipaddress.ip_network(f"{address}/{mask}", strict=False)))
    return tuple(dict.fromkeys(networks))
