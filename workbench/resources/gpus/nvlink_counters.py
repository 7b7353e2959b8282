"""What passes over a GPU's NVLinks, from the driver's counter of each link."""

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
    """Sent and received, and the bytes that a count is worth."""

    sent: int
    received: int
    unit_bytes: int


# NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX, in KiB, payload only;
# NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES and _RCV_BYTES, where a driver has only these.
_KINDS = (_Fields(138, 139, 1024), _Fields(202, 204, 1))
_LOOK_AGAIN = 60
"""Readings after which a GPU without a link that counts is asked anew: its fabric may be up."""


class NvLinkMeter:
    """The NVLinks of one GPU together; each link's counter has a rate of its own.

    A sum is known only where every link that counts has one: a link that was
    reset, or came up, leaves it unknown for that interval.
    """

    def __init__(self) -> None:
        self._rates: defaultdict[tuple[int, int], Rate] = defaultdict(Rate)
        self._clock = WallClock()
        self._fields: _Fields | None = None
        self._links = 0
        self._why = Unknown("not asked yet")
        self._wait = 0

    def read(self, nvml: Nvml, handle: Any) -> tuple[float | Unknown, float | Unknown]:
        """Give the bytes per second that were sent and received since the reading before."""
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
        self._wait = _LOOK_AGAIN

    def _rate(self, links: list[Reading], direction: int) -> float | Unknown:
        assert self._fields is not None
        rates = [
            self._rates[link, direction].update(reading.value, reading.time_s)
            for link, reading in enumerate(links)
        ]
        # a link that is down counts nothing: the others carry it all
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
