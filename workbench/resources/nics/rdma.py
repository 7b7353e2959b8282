"""Read RDMA ports from ``/sys/class/infiniband``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from workbench.resources.files import children, read_int, read_text
from workbench.resources.nics.records import Gid
from workbench.resources.unknown import Unknown

_UNSET_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
_RATE = re.compile(r"([\d.]+)\s*Gb/sec")
WORD_BYTES = 4
"""``port_xmit_data`` and ``port_rcv_data`` count words of four bytes (InfiniBand specification)."""


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
        The network interface of this port; None if there is none.
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
