"""Measure the traffic of each NIC, from the counters in sysfs."""

from __future__ import annotations

import os
import time
from pathlib import Path

from workbench.resources.files import read_count
from workbench.resources.nics.probe import interfaces, port_name
from workbench.resources.nics.rdma import RdmaPort, rdma_ports
from workbench.resources.nics.rdma_counters import RdmaMeter
from workbench.resources.rates import Rate, added
from workbench.resources.unknown import Unknown
from workbench.resources.usage import NicUse

_PLAIN = Unknown("plain NIC: no RDMA device")
_TRAFFIC = ("tx_bytes", "rx_bytes", "tx_packets", "rx_packets")
_ERRORS = ("rx_dropped", "tx_dropped", "rx_errors", "tx_errors")

Values = tuple[float | Unknown, ...]


class NicMeter:
    """Reads all NICs; RDMA ports are listed once, interfaces whenever they change.

    Parameters
    ----------
    sysfs
        Mount point of sysfs.
    errors_s
        Shortest time between two readings of an RDMA port's errors.
    """

    def __init__(self, sysfs: Path, errors_s: float) -> None:
        self._sysfs = sysfs
        self._errors_s = errors_s
        self._ports: list[tuple[RdmaPort, RdmaMeter]] | None = None
        self._taken: set[str | None] = set()
        self._listed: list[str] = []
        self._names: list[str] = []
        self._interfaces: dict[str, _Interface] = {}

    def read(self) -> tuple[NicUse, ...]:
        """Return the rates of each NIC, except loopback, since the previous reading."""
        if self._ports is None:
            self._ports = [
                (port, RdmaMeter(port, self._errors_s)) for port in rdma_ports(self._sysfs)
            ]
            self._taken = {port.interface for port, _ in self._ports}
        rdma = (self._rdma(*each) for each in self._ports)
        return (*rdma, *map(self._plain, self._plain_names()))

    def _plain_names(self) -> list[str]:
        """Return the interfaces without RDMA; they are listed again when one comes or goes."""
        try:
            listed = os.listdir(self._sysfs / "class/net")  # noqa: PTH208 - names do
        except OSError:
            return []
        if listed != self._listed:
            self._listed = listed
            found = (one.name for one in interfaces(self._sysfs))
            self._names = [name for name in found if name not in self._taken]
        return self._names

    def _rdma(self, port: RdmaPort, meter: RdmaMeter) -> NicUse:
        rdma, congestion = meter.traffic(), meter.congestion()
        name = port_name(port)
        if meter.is_infiniband or port.interface is None:
            errors = meter.missing or meter.errors()
            return _nic(name, rdma, rdma, congestion, errors)
        kernel = self._interface(port.interface)
        # if RDMA cannot be measured, report only the kernel's traffic
        plain = kernel.traffic()
        together = plain if meter.missing else tuple(map(added, zip(plain, rdma, strict=True)))
        return _nic(name, together, rdma, congestion, {**meter.errors(), **kernel.errors()})

    def _plain(self, name: str) -> NicUse:
        kernel = self._interface(name)
        return _nic(name, kernel.traffic(), (_PLAIN,) * 4, (_PLAIN,) * 3, kernel.errors())

    def _interface(self, name: str) -> _Interface:
        if name not in self._interfaces:
            self._interfaces[name] = _Interface(self._sysfs / "class/net" / name / "statistics")
        return self._interfaces[name]


class _Interface:
    """The kernel's counters of a network interface."""

    def __init__(self, folder: Path) -> None:
        self._rates = {name: (f"{folder}/{name}", Rate()) for name in (*_TRAFFIC, *_ERRORS)}

    def traffic(self) -> Values:
        return tuple(map(self._rate, _TRAFFIC))

    def errors(self) -> dict[str, float | Unknown]:
        return {name: self._rate(name) for name in _ERRORS}

    def _rate(self, name: str) -> float | Unknown:
        path, rate = self._rates[name]
        return rate.update(read_count(path), time.monotonic())


def _nic(
    name: str,
    traffic: Values,
    rdma: Values,
    congestion: Values,
    errors: dict[str, float | Unknown] | Unknown,
) -> NicUse:
    return NicUse(
        name=name,
        tx_bytes_per_s=traffic[0],
        rx_bytes_per_s=traffic[1],
        rdma_tx_bytes_per_s=rdma[0],
        rdma_rx_bytes_per_s=rdma[1],
        tx_packets_per_s=traffic[2],
        rx_packets_per_s=traffic[3],
        rdma_tx_packets_per_s=rdma[2],
        rdma_rx_packets_per_s=rdma[3],
        cnp_sent_per_s=congestion[0],
        cnp_handled_per_s=congestion[1],
        ecn_marked_per_s=congestion[2],
        errors=errors,
    )
