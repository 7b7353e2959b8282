"""Measure the traffic over a GPU's NVLinks, from the driver's counters of each link."""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import Any, NamedTuple

from workbench.resources.gpus.nvlinks import MOST_LINKS
from workbench.resources.gpus.nvml import Nvml
from workbench.resources.gpus.nvml_fields import Reading, WallClock, read_fields, refusal
from workbench.resources.rates import Rate, added
from workbench.resources.unknown import Unknown


class _Fields(NamedTuple):
    """Field ids of the sent and received data, and the bytes of one count."""

    sent: int
    received: int
    unit_bytes: int


# NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX, in KiB, payload only;
# NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES and _RCV_BYTES, if a driver has only these.
_KINDS = (_Fields(138, 139, 1024), _Fields(202, 204, 1))
_RETRY_READINGS = 60
"""Readings after which a GPU without counters is queried again: its fabric may be up by then."""


class NvLinkMeter:
    """Total rates of one GPU's NVLinks, from a rate of each link's counter.

    The total is known only if the rates of all links with a counter are: after a link was
    reset or came up, it is unknown for that interval.
    """

    def __init__(self) -> None:
        self._rates: defaultdict[tuple[int, int], Rate] = defaultdict(Rate)
        self._clock = WallClock()
        self._fields: _Fields | None = None
        self._links = 0
        self._why = Unknown("not asked yet")
        self._wait = 0

    def read(self, nvml: Nvml, handle: Any) -> tuple[float | Unknown, float | Unknown]:
        """Return the bytes per second sent and received since the previous reading."""
        if self._fields is None:
            self._find(nvml, handle)
        if self._fields is None:
            return self._why, self._why
        if self._clock.was_set():
            self._rates.clear()
        found = read_fields(nvml, handle, _wanted(self._fields, self._links))
        if isinstance(found, Unknown):
            self._rates.clear()
            return found, found
        return self._rate(found[: self._links], 0), self._rate(found[self._links :], 1)

    def _find(self, nvml: Nvml, handle: Any) -> None:
        if self._wait:
            self._wait -= 1
            return
        for kind in _KINDS:
            found = read_fields(nvml, handle, _wanted(kind, MOST_LINKS))
            if isinstance(found, Unknown):
                self._why = found
                continue
            answered = [n for n in range(MOST_LINKS) if not isinstance(found[n].value, Unknown)]
            if answered:
                self._fields, self._links = kind, answered[-1] + 1
                return
            self._why = refusal(found)
        self._wait = _RETRY_READINGS

    def _rate(self, links: list[Reading], direction: int) -> float | Unknown:
        assert self._fields is not None
        rates = [
            self._rates[link, direction].update(reading.value, reading.time_s)
            for link, reading in enumerate(links)
        ]
        # a link that is down has no counter, and the others carry all traffic
        counting = [
            rate
            for rate, reading in zip(rates, links, strict=True)
            if not isinstance(reading.value, Unknown)
        ]
        if not counting:
            return refusal(links)
        total = added(counting)
        return total if isinstance(total, Unknown) else total * self._fields.unit_bytes


@functools.cache
def _wanted(fields: _Fields, links: int) -> tuple[tuple[int, int], ...]:
    both = fields.sent, fields.received
    return tuple((field, link) for field in both for link in range(links))
