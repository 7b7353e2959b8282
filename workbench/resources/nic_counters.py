"""What passes over each NIC, from the counters in sysfs."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path

from workbench.resources.files import read_int
from workbench.resources.nics import interfaces, port_name
from workbench.resources.rates import Rate
from workbench.resources.rdma import RdmaPort, rdma_ports
from workbench.resources.unknown import Unknown
from workbench.resources.usage import NicUse

_PLAIN = Unknown("plain NIC: no RDMA device")


class NicMeter:
    """Reads all NICs; RDMA ports are listed once, interfaces at each reading.

    Parameters
    ----------
    sysfs
        Where sysfs is mounted.
    """

    def __init__(self, sysfs: Path) -> None:
        self._sysfs = sysfs
        self._ports: list[RdmaPort] | None = None
        self._rates: defaultdict[tuple[str, str, str], Rate] = defaultdict(Rate)

    def read(self) -> tuple[NicUse, ...]:
        """Give every NIC's rates since the reading before; loopback is left out."""
        if self._ports is None:
            self._ports = rdma_ports(self._sysfs)
        taken = {port.interface for port in self._ports}
        plain = [x.name for x in interfaces(self._sysfs) if x.name not in taken]
        return (*map(self._rdma, self._ports), *map(self._plain, plain))

    def _rdma(self, port: RdmaPort) -> NicUse:
        tx, rx = (self._rdma_rate(port, direction) for direction in ("tx", "rx"))
        name = port_name(port)
        if port.link_layer() == "InfiniBand" or port.interface is None:
            return NicUse(name, tx, rx, tx, rx)
        plain_tx, plain_rx = (self._kernel_rate(port.interface, x) for x in ("tx", "rx"))
        return NicUse(name, _both(plain_tx, tx), _both(plain_rx, rx), tx, rx)

    def _plain(self, name: str) -> NicUse:
        tx, rx = (self._kernel_rate(name, direction) for direction in ("tx", "rx"))
        return NicUse(name, tx, rx, _PLAIN, _PLAIN)

    def _rdma_rate(self, port: RdmaPort, direction: str) -> float | Unknown:
        count = port.bytes_counter(direction)
        rate = self._rates["rdma", f"{port.device}/{port.number}", direction]
        return rate.update(count, time.monotonic())

    def _kernel_rate(self, interface: str, direction: str) -> float | Unknown:
        folder = self._sysfs / "class/net" / interface / "statistics"
        count = read_int(folder / f"{direction}_bytes")
        return self._rates["kernel", interface, direction].update(count, time.monotonic())


def _both(kernel: float | Unknown, rdma: float | Unknown) -> float | Unknown:
    """Add what does not overlap; an RDMA device without counters leaves the kernel's part."""
    if isinstance(kernel, Unknown) or isinstance(rdma, Unknown):
        return kernel
    return kernel + rdma
