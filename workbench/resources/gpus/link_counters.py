"""Measure the traffic over a GPU's NVLinks and its PCIe link.

For NVLink, the driver has a counter for each link. For PCIe, it has byte counters that are
quick to read, but may have only 32 bits and then wrap many times between samples: they are
used only after they have exceeded 32 bits. Until then, NVML measures the throughput. That call
blocks for 20 ms, so it runs in a thread, one round over all GPUs per sample. A sample has the
figures of the last round.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from workbench.resources.gpus.nvlinks import MAX_LINKS
from workbench.resources.gpus.nvml import (
    FieldReading,
    Nvml,
    WallClock,
    first_reason,
    is_unsupported,
    query,
    read_fields,
)
from workbench.resources.unknown import Unknown
from workbench.resources.usage import FIRST, Rate, sum_or_unknown

TxRx = tuple[float | Unknown, float | Unknown]
TxRxOrNone = tuple[float | Unknown | None, float | Unknown | None]

# NVML_FI_DEV_PCIE_COUNT_TX_BYTES and _RX_BYTES; "value can be wrapped".
_PCIE_FIELDS = ((197, 0), (198, 0))
# nvmlPcieUtilCounter_t: sent and received; in KB/s, a unit that nvml.h does not define further.
_SENT = 0
_RECEIVED = 1
_KB = 1000
_WIDE = 1 << 32
_STALE_S = 5.0


class _LinkFields(NamedTuple):
    """Field ids of the sent and received data, and the bytes that one count stands for."""

    sent: int
    received: int
    unit_bytes: int


# NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX, in KiB, payload only;
# NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES and _RCV_BYTES, if a driver has only these.
_LINK_FIELDS = (_LinkFields(138, 139, 1024), _LinkFields(202, 204, 1))
_RETRY_READINGS = 60
"""Readings after which a GPU without counters is queried again: its fabric may be up by then."""


class NvLinkMeter:
    """Total rates of one GPU's NVLinks, from a rate of each link's counter.

    If the rate of one link is unknown, the total is unknown too: this lasts for one interval
    after a link was reset or came up.
    """

    def __init__(self) -> None:
        self._rates: defaultdict[tuple[int, int], Rate] = defaultdict(Rate)
        self._clock = WallClock()
        self._fields: _LinkFields | None = None
        self._links = 0
        self._unavailable = Unknown("not asked yet")
        self._skip_readings = 0

    def read(self, nvml: Nvml, handle: Any) -> tuple[float | Unknown, float | Unknown]:
        """Return the bytes per second sent and received since the previous reading."""
        if self._fields is None:
            self._find_fields(nvml, handle)
        if self._fields is None:
            return self._unavailable, self._unavailable
        if self._clock.was_set():
            self._rates.clear()
        readings = read_fields(nvml, handle, _field_scopes(self._fields, self._links))
        if isinstance(readings, Unknown):
            self._rates.clear()
            return readings, readings
        return self._rate(readings[: self._links], 0), self._rate(readings[self._links :], 1)

    def _find_fields(self, nvml: Nvml, handle: Any) -> None:
        if self._skip_readings:
            self._skip_readings -= 1
            return
        for fields in _LINK_FIELDS:
            readings = read_fields(nvml, handle, _field_scopes(fields, MAX_LINKS))
            if isinstance(readings, Unknown):
                self._unavailable = readings
                continue
            answered = [n for n in range(MAX_LINKS) if not isinstance(readings[n].value, Unknown)]
            if answered:
                self._fields = fields
                self._links = answered[-1] + 1
                return
            self._unavailable = first_reason(readings)
        self._skip_readings = _RETRY_READINGS

    def _rate(self, links: list[FieldReading], direction: int) -> float | Unknown:
        assert self._fields is not None
        rates = [
            self._rates[link, direction].update(reading.value, reading.time_s)
            for link, reading in enumerate(links)
        ]
        # A link that is down has no counter; the other links carry all traffic.
        counting = [
            rate
            for rate, reading in zip(rates, links, strict=True)
            if not isinstance(reading.value, Unknown)
        ]
        if not counting:
            return first_reason(links)
        total = sum_or_unknown(counting)
        return total if isinstance(total, Unknown) else total * self._fields.unit_bytes


@functools.cache
def _field_scopes(fields: _LinkFields, links: int) -> tuple[tuple[int, int], ...]:
    both = fields.sent, fields.received
    return tuple((field, link) for field in both for link in range(links))


class PcieMeter:
    """Rates from the byte counters of one GPU, if the counters have more than 32 bits."""

    def __init__(self) -> None:
        self._rates = (Rate(), Rate())
        self._clock = WallClock()
        self._wide = [False, False]

    def read(self, nvml: Nvml, handle: Any) -> TxRxOrNone:
        """Return the bytes per second sent and received; None if a counter may have 32 bits."""
        readings = read_fields(nvml, handle, _PCIE_FIELDS)
        if isinstance(readings, Unknown):
            return None, None
        if self._clock.was_set():
            self._rates = (Rate(), Rate())
        return self._rate(readings[0], 0), self._rate(readings[1], 1)

    def _rate(self, reading: FieldReading, direction: int) -> float | Unknown | None:
        if isinstance(reading.value, Unknown):
            return None
        self._wide[direction] |= reading.value >= _WIDE
        rate = self._rates[direction].update(reading.value, reading.time_s)
        return rate if self._wide[direction] else None


class PcieRounds:
    """Measures the throughput with NVML in a thread, one round over all GPUs at a time."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._measured: dict[int, tuple[float, TxRx]] = {}
        self._unsupported: dict[int, TxRx] = {}
        self._closing = False

    def latest(self, position: int) -> TxRx:
        """Return a GPU's bytes per second, sent and received, by the last round.

        `position` is the GPU's position in the list of devices.
        """
        if position in self._unsupported:
            return self._unsupported[position]
        if position not in self._measured:
            return FIRST, FIRST
        measured_s, rates = self._measured[position]
        if time.monotonic() - measured_s > _STALE_S:
            stale = Unknown(f"NVML has not measured it for {_STALE_S:g} s")
            return stale, stale
        return rates

    def start(self, nvml: Nvml, handles: Mapping[int, Any]) -> None:
        """Start a round over the GPUs, given by their positions, unless one is running."""
        handles = {n: handle for n, handle in handles.items() if n not in self._unsupported}
        if not handles or (self._thread is not None and self._thread.is_alive()):
            return
        self._thread = threading.Thread(
            target=self._round, args=(nvml, handles), name="workbench-pcie", daemon=True
        )
        self._thread.start()

    def close(self, limit_s: float) -> bool:
        """Wait for the running round. Return whether it has ended, so that NVML can be closed."""
        self._closing = True
        if self._thread is None:
            return True
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _round(self, nvml: Nvml, handles: Mapping[int, Any]) -> None:
        for position, handle in handles.items():
            if self._closing:
                return
            rates = (_measure(nvml, handle, _SENT), _measure(nvml, handle, _RECEIVED))
            self._measured[position] = time.monotonic(), rates
            if all(is_unsupported(rate) for rate in rates):
                self._unsupported[position] = rates


def _measure(nvml: Nvml, handle: Any, counter: int) -> float | Unknown:
    throughput = query(nvml, handle, "nvmlDeviceGetPcieThroughput", counter)
    return throughput if isinstance(throughput, Unknown) else float(throughput * _KB)
