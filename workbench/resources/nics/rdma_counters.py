"""Read the counters of an RDMA port: bytes, packets, congestion, errors."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from workbench.resources.files import read_count
from workbench.resources.nics.rdma import WORD_BYTES, RdmaPort
from workbench.resources.rates import Rate
from workbench.resources.unknown import Unknown

# Files in `counters`, with names of the kernel's ib_core, and the maximum of InfiniBand's
# PortCounters (specification, 16.1.3.5), at which they stop until they are reset. With some
# drivers they have more bits and continue.
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
_FULL = Unknown("the counter is at InfiniBand's maximum, and may not count any further")
_MOST_WORDS = 0xFFFFFFFF

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
_CONGESTION = ("np_cnp_sent", "rp_cnp_handled", "np_ecn_marked_roce_packets")
_TRAFFIC = ("port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets")
_DEVICE_TRAFFIC = ("tx_bytes", "rx_bytes", "tx_pkts", "rx_pkts")
"""Files in `hw_counters` of drivers without `counters`, such as efa; in bytes."""


class CounterFolder:
    """Rates of counters that are files in one folder.

    Parameters
    ----------
    folder
        Folder in sysfs.
    names
        Names of the counters; those without a file are ignored.
    most
        Maximum of a counter, by its name.
    """

    def __init__(self, folder: Path, names: Iterable[str], most: dict[str, int]) -> None:
        self._most = most
        files = ((name, folder / name) for name in names)
        self._rates = {name: (str(path), Rate()) for name, path in files if path.exists()}

    def read(self) -> dict[str, float | Unknown]:
        """Return the rate per second of each counter since the previous reading."""
        found: dict[str, float | Unknown] = {}
        for name, (path, rate) in self._rates.items():
            count = read_count(path)
            full = self._most.get(name) == count
            found[name] = rate.update(_FULL if full else count, time.monotonic())
        return found


class ThrottledCounters:
    """Reads counters at most once per period, and returns their last rates in between.

    Parameters
    ----------
    folders
        The counters.
    period_s
        Shortest time from one reading to the next.
    """

    def __init__(self, folders: Iterable[CounterFolder], period_s: float) -> None:
        self._folders = tuple(folders)
        self._period_s = period_s
        self._due = 0.0
        self._last: dict[str, float | Unknown] = {}
        self._readings = 0

    def read(self) -> dict[str, float | Unknown]:
        """Return the rate per second of each counter between its last two readings."""
        now = time.monotonic()
        if now >= self._due:
            # rates need two readings, so do not delay the second
            self._due = now + (self._period_s if self._readings else 0.0)
            self._readings += 1
            self._last = {k: v for folder in self._folders for k, v in folder.read().items()}
        return self._last


class RdmaMeter:
    """The counters of one port.

    Parameters
    ----------
    port
        The port.
    errors_s
        Shortest time between two readings of its errors: with most drivers, reading each of
        the dozens of files queries the NIC's firmware.

    Attributes
    ----------
    missing
        Why the port has no counters; None if it has.
    is_infiniband
        Whether the link layer is InfiniBand, so that the counters include all traffic.
    """

    def __init__(self, port: RdmaPort, errors_s: float) -> None:
        self._port = port
        self.missing = port.no_counters()
        self.is_infiniband = port.link_layer() == "InfiniBand"
        own, device = port.port_folder / "counters", port.port_folder / "hw_counters"
        words = dict.fromkeys(_TRAFFIC, _MOST_WORDS)
        self._names, self._unit_bytes = _TRAFFIC, WORD_BYTES
        self._traffic = CounterFolder(own, _TRAFFIC, words)
        if self.missing is not None and (device / _DEVICE_TRAFFIC[0]).exists():
            self.missing, self._names, self._unit_bytes = None, _DEVICE_TRAFFIC, 1
            self._traffic = CounterFolder(device, _DEVICE_TRAFFIC, {})
        on_device, on_port = (
            CounterFolder(device, _DEVICE_ERRORS, {}),
            CounterFolder(own, _PORT_ERRORS, _PORT_ERRORS),
        )
        self._errors = ThrottledCounters((on_device, on_port), errors_s)
        self._congestion = CounterFolder(device, _CONGESTION, {})

    def traffic(self) -> tuple[float | Unknown, ...]:
        """Return bytes per second sent and received, then packets per second."""
        found = self._traffic.read()
        tx, rx, *packets = (self._of(found, name) for name in self._names)
        return (self._bytes(tx), self._bytes(rx), *packets)

    def congestion(self) -> tuple[float | Unknown, ...]:
        """Return notifications sent and obeyed, and marked packets, per second."""
        found = self._congestion.read()
        return tuple(self._of(found, name) for name in _CONGESTION)

    def errors(self) -> dict[str, float | Unknown]:
        """Return the errors per second by the name of their counter."""
        return self._errors.read()

    def _of(self, found: dict[str, float | Unknown], name: str) -> float | Unknown:
        if self.missing is not None:
            return self.missing
        return found.get(name, Unknown(f"the driver of {self._port.device} has no {name}"))

    def _bytes(self, count: float | Unknown) -> float | Unknown:
        return count if isinstance(count, Unknown) else count * self._unit_bytes
