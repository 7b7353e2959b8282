"""What the counters of an RDMA port say: bytes, packets, congestion, errors."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from workbench.resources.files import read_count
from workbench.resources.nics.rdma import WORD_BYTES, RdmaPort
from workbench.resources.rates import Rate
from workbench.resources.unknown import Unknown

# In `counters`: names in the kernel's ib_core. The most that InfiniBand's PortCounters hold
# (specification, 16.1.3.5): they stop there until somebody resets them. Some drivers give
# more bits and go past it.
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
_FULL = Unknown("the counter stands at the most that InfiniBand's hold, and may count no further")
_MOST_WORDS = 0xFFFFFFFF

# In `hw_counters`: names in the kernel's mlx5 driver, then efa; each driver has its own.
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
"""In `hw_counters` of drivers that have no `counters`, such as efa; in bytes."""


class Counters:
    """Some files of a folder as rates; which of them are there is looked up once.

    Parameters
    ----------
    folder
        In sysfs.
    names
        Of the counters that are wanted.
    most
        Where a counter stops, by its name.
    """

    def __init__(self, folder: Path, names: Iterable[str], most: dict[str, int]) -> None:
        self._most = most
        there = ((name, folder / name) for name in names)
        self._rates = {name: (str(path), Rate()) for name, path in there if path.exists()}

    def read(self) -> dict[str, float | Unknown]:
        """Give the rate per second of each counter since the reading before."""
        found: dict[str, float | Unknown] = {}
        for name, (path, rate) in self._rates.items():
            count = read_count(path)
            full = self._most.get(name) == count
            found[name] = rate.update(_FULL if full else count, time.monotonic())
        return found


class Sparing:
    """Reads counters no more often than every so many seconds; their last rates stand until then.

    Parameters
    ----------
    folders
        What to read.
    period_s
        Least time from one reading to the next.
    """

    def __init__(self, folders: Iterable[Counters], period_s: float) -> None:
        self._folders = tuple(folders)
        self._period_s = period_s
        self._due = 0.0
        self._last: dict[str, float | Unknown] = {}
        self._readings = 0

    def read(self) -> dict[str, float | Unknown]:
        """Give the rate per second of each counter between its last two readings."""
        now = time.monotonic()
        if now >= self._due:
            # rates need two readings: the second need not wait
            self._due = now + (self._period_s if self._readings else 0.0)
            self._readings += 1
            self._last = {k: v for folder in self._folders for k, v in folder.read().items()}
        return self._last


class RdmaMeter:
    """The counters of one port.

    Parameters
    ----------
    port
        Which.
    errors_s
        Least time between two readings of its errors: for most drivers each file is a
        question to the NIC's firmware, and there are dozens.

    Attributes
    ----------
    missing
        Why the port has no counters at all; None where it has.
    is_infiniband
        Whether all that passes the port is in its counters.
    """

    def __init__(self, port: RdmaPort, errors_s: float) -> None:
        self._port = port
        self.missing = port.no_counters()
        self.is_infiniband = port.link_layer() == "InfiniBand"
        own, device = port.port_folder / "counters", port.port_folder / "hw_counters"
        words = dict.fromkeys(_TRAFFIC, _MOST_WORDS)
        self._names, self._unit_bytes = _TRAFFIC, WORD_BYTES
        self._traffic = Counters(own, _TRAFFIC, words)
        if self.missing is not None and (device / _DEVICE_TRAFFIC[0]).exists():
            self.missing, self._names, self._unit_bytes = None, _DEVICE_TRAFFIC, 1
            self._traffic = Counters(device, _DEVICE_TRAFFIC, {})
        on_device, on_port = (
            Counters(device, _DEVICE_ERRORS, {}),
            Counters(own, _PORT_ERRORS, _PORT_ERRORS),
        )
        self._errors = Sparing((on_device, on_port), errors_s)
        self._congestion = Counters(device, _CONGESTION, {})

    def traffic(self) -> tuple[float | Unknown, ...]:
        """Give bytes per second sent and received, then packets per second."""
        found = self._traffic.read()
        tx, rx, *packets = (self._of(found, name) for name in self._names)
        return (self._bytes(tx), self._bytes(rx), *packets)

    def congestion(self) -> tuple[float | Unknown, ...]:
        """Give notifications sent and obeyed, and packets that were marked, per second."""
        found = self._congestion.read()
        return tuple(self._of(found, name) for name in _CONGESTION)

    def errors(self) -> dict[str, float | Unknown]:
        """Give the errors per second by their counters' names; those that there are."""
        return self._errors.read()

    def _of(self, found: dict[str, float | Unknown], name: str) -> float | Unknown:
        if self.missing is not None:
            return self.missing
        return found.get(name, Unknown(f"the driver of {self._port.device} has no {name}"))

    def _bytes(self, count: float | Unknown) -> float | Unknown:
        return count if isinstance(count, Unknown) else count * self._unit_bytes
