"""Measure the traffic of each NIC, and the congestion and errors of RDMA ports, from sysfs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from workbench.resources.files import read_count
from workbench.resources.nics.probe import WORD_BYTES, RdmaPort, interfaces, port_name, rdma_ports
from workbench.resources.unknown import Unknown, if_known
from workbench.resources.usage import NicUse, Rate, sum_or_unknown

# Files in `counters`, with names of the kernel's ib_core, and the maximum of InfiniBand's
# PortCounters (specification, 16.1.3.5). A counter stops at its maximum until it is reset. With
# some drivers, counters have more bits and do not stop there.
_PORT_ERRORS = {
    "port_rcv_errors": 0xFFFF,
    "port_rcv_remote_physical_errors": 0xFFFF,
    "port_rcv_constraint_errors": 0xFF,
    "port_xmit_discards": 0xFFFF,
    "port_xmit_constraint_errors": 0xFF,
    "symbol_error": 0xFFFF,
    "link_error_recovery": 0xFF,
    "link_downed": 0xFF,
    "local_link_integrity_errors": 0xF,
    "excessive_buffer_overrun_errors": 0xF,
    "VL15_dropped": 0xFFFF,
}
_AT_MAXIMUM = Unknown("the counter is at InfiniBand's maximum, and may not count any further")
_MAX_WORDS = 0xFFFFFFFF

# Files in `hw_counters`, with names of the kernel's mlx5 driver, then of efa.
_DEVICE_ERRORS = (
    "out_of_sequence",
    "packet_seq_err",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "out_of_buffer",
    "rnr_nak_retry_err",
    "duplicate_request",
    "roce_adp_retrans",
    "roce_adp_retrans_to",
    "roce_slow_restart",
    "rx_icrc_encapsulated",
    "req_cqe_error",
    "req_transport_retries_exceeded",
    "resp_cqe_error",
    "resp_local_length_error",
    "rx_drops",
    "retrans_pkts",
    "retrans_timeout_events",
)
_DEVICE_CONGESTION = ("np_cnp_sent", "rp_cnp_handled", "np_ecn_marked_roce_packets")
_PORT_TRAFFIC = ("port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets")
_DEVICE_TRAFFIC = ("tx_bytes", "rx_bytes", "tx_pkts", "rx_pkts")
"""Files in `hw_counters` of drivers without `counters`, such as efa; in bytes."""
_NO_RDMA = Unknown("plain NIC: no RDMA device")
_KERNEL_TRAFFIC = ("tx_bytes", "rx_bytes", "tx_packets", "rx_packets")
_KERNEL_ERRORS = ("rx_dropped", "tx_dropped", "rx_errors", "tx_errors")

Values = tuple[float | Unknown, ...]


class CounterFolder:
    """Rates of counters that are files in one folder.

    The last rates are returned for `period_s` after a reading. `maxima` has the maximum of
    counters by name.
    """

    def __init__(
        self,
        folder: Path,
        names: Iterable[str],
        maxima: Mapping[str, int] = MappingProxyType({}),
        period_s: float = 0.0,
    ) -> None:
        self._maxima = maxima
        self._period_s = period_s
        self._due_s = 0.0
        self._last: dict[str, float | Unknown] | None = None
        self._rates = {name: (f"{folder}/{name}", Rate()) for name in names}

    def read(self) -> dict[str, float | Unknown]:
        """Return the rate per second of each counter between its last two readings."""
        now_s = time.monotonic()
        if self._last is not None and now_s < self._due_s:
            return self._last
        # Rates need two readings, so the second one is not delayed.
        self._due_s = now_s if self._last is None else now_s + self._period_s
        self._last = {}
        for name, (path, rate) in self._rates.items():
            count = read_count(path)
            is_full = self._maxima.get(name) == count
            self._last[name] = rate.update(_AT_MAXIMUM if is_full else count, time.monotonic())
        return self._last


class RdmaMeter:
    """The counters of one port.

    Parameters
    ----------
    port
        The port.
    errors_s
        Shortest time between two readings of its errors. With most drivers, reading each of
        the dozens of files queries the NIC's firmware.

    Attributes
    ----------
    missing
        Why the port has no counters; None if it has counters.
    is_infiniband
        Whether the link layer is InfiniBand, so that the counters include all traffic.
    """

    def __init__(self, port: RdmaPort, errors_s: float) -> None:
        self._port = port
        self.missing = port.no_counters()
        self.is_infiniband = port.link_layer() == "InfiniBand"
        counters = port.port_folder / "counters"
        hw_counters = port.port_folder / "hw_counters"
        maxima = dict.fromkeys(_PORT_TRAFFIC, _MAX_WORDS)
        self._names = _PORT_TRAFFIC
        self._unit_bytes = WORD_BYTES
        self._traffic = CounterFolder(counters, _existing(counters, _PORT_TRAFFIC), maxima)
        if self.missing is not None and (hw_counters / _DEVICE_TRAFFIC[0]).exists():
            self.missing = None
            self._names = _DEVICE_TRAFFIC
            self._unit_bytes = 1
            self._traffic = CounterFolder(hw_counters, _existing(hw_counters, _DEVICE_TRAFFIC))
        self._errors = (
            CounterFolder(hw_counters, _existing(hw_counters, _DEVICE_ERRORS), period_s=errors_s),
            CounterFolder(counters, _existing(counters, _PORT_ERRORS), _PORT_ERRORS, errors_s),
        )
        self._congestion = CounterFolder(hw_counters, _existing(hw_counters, _DEVICE_CONGESTION))

    def traffic(self) -> tuple[float | Unknown, ...]:
        """Return bytes per second sent and received, then packets per second."""
        rates = self._traffic.read()
        *words, tx_packets, rx_packets = (self._rate(rates, name) for name in self._names)
        tx, rx = (if_known(count, lambda count: count * self._unit_bytes) for count in words)
        return tx, rx, tx_packets, rx_packets

    def congestion(self) -> tuple[float | Unknown, ...]:
        """Return congestion notifications sent and handled, and marked packets, per second."""
        rates = self._congestion.read()
        return tuple(self._rate(rates, name) for name in _DEVICE_CONGESTION)

    def errors(self) -> dict[str, float | Unknown]:
        """Return the errors per second by the name of their counter."""
        return {name: rate for folder in self._errors for name, rate in folder.read().items()}

    def _rate(self, rates: dict[str, float | Unknown], name: str) -> float | Unknown:
        if self.missing is not None:
            return self.missing
        return rates.get(name, Unknown(f"the driver of {self._port.device} has no {name}"))


class NicMeter:
    """Reads all NICs. Lists RDMA ports once, and interfaces again when the list changes."""

    def __init__(self, sysfs: Path, errors_s: float) -> None:
        self._sysfs = sysfs
        self._errors_s = errors_s
        self._ports: list[tuple[RdmaPort, RdmaMeter]] | None = None
        self._rdma_interfaces: set[str | None] = set()
        self._listed: list[str] = []
        self._names: list[str] = []
        self._interfaces: dict[str, tuple[CounterFolder, CounterFolder]] = {}

    def read(self) -> tuple[NicUse, ...]:
        """Return the rates of each NIC, except loopback, since the previous reading."""
        if self._ports is None:
            self._ports = [
                (port, RdmaMeter(port, self._errors_s)) for port in rdma_ports(self._sysfs)
            ]
            self._rdma_interfaces = {port.interface for port, _ in self._ports}
        rdma = (self._rdma(port, meter) for port, meter in self._ports)
        return (*rdma, *map(self._plain, self._plain_names()))

    def _plain_names(self) -> list[str]:
        """Return the interfaces without RDMA. List them again when one is added or removed."""
        try:
            listed = os.listdir(self._sysfs / "class/net")  # noqa: PTH208 - names suffice
        except OSError:
            return []
        if listed != self._listed:
            self._listed = listed
            names = (folder.name for folder in interfaces(self._sysfs))
            self._names = [name for name in names if name not in self._rdma_interfaces]
        return self._names

    def _rdma(self, port: RdmaPort, meter: RdmaMeter) -> NicUse:
        rdma = meter.traffic()
        congestion = meter.congestion()
        name = port_name(port)
        if meter.is_infiniband or port.interface is None:
            return _nic(name, rdma, rdma, congestion, meter.missing or meter.errors())
        plain, errors = self._kernel_counters(port.interface)
        # If RDMA cannot be measured, report only the kernel's traffic.
        total = (
            plain if meter.missing else tuple(map(sum_or_unknown, zip(plain, rdma, strict=True)))
        )
        return _nic(name, total, rdma, congestion, {**meter.errors(), **errors})

    def _plain(self, name: str) -> NicUse:
        traffic, errors = self._kernel_counters(name)
        return _nic(name, traffic, (_NO_RDMA,) * 4, (_NO_RDMA,) * 3, errors)

    def _kernel_counters(self, name: str) -> tuple[Values, dict[str, float | Unknown]]:
        """Return the rates of an interface's traffic, and of its errors by counter."""
        if name not in self._interfaces:
            folder = self._sysfs / "class/net" / name / "statistics"
            self._interfaces[name] = (
                CounterFolder(folder, _KERNEL_TRAFFIC),
                CounterFolder(folder, _KERNEL_ERRORS),
            )
        traffic, errors = self._interfaces[name]
        return tuple(traffic.read().values()), errors.read()


def _existing(folder: Path, names: Iterable[str]) -> list[str]:
    return [name for name in names if (folder / name).exists()]


def _nic(
    name: str,
    traffic: Values,
    rdma: Values,
    congestion: Values,
    errors: dict[str, float | Unknown] | Unknown,
) -> NicUse:
    tx, rx, tx_packets, rx_packets = traffic
    rdma_tx, rdma_rx, rdma_tx_packets, rdma_rx_packets = rdma
    packets = (tx_packets, rx_packets, rdma_tx_packets, rdma_rx_packets)
    cnp_sent, cnp_handled, ecn_marked = congestion
    return NicUse(
        name, tx, rx, rdma_tx, rdma_rx, *packets, cnp_sent, cnp_handled, ecn_marked, errors
    )
