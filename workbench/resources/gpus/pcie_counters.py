"""Measure the traffic over a GPU's PCIe link, with the method that its driver supports.

The driver's byte counters are free of cost, but may have only 32 bits and then wrap many
times between samples. So they are used only after they have exceeded 32 bits. Until then,
NVML measures the throughput, which blocks for 20 ms per call: this runs in a separate
thread, one round over all GPUs per sample, and a sample takes the figures of the last
round.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from workbench.resources.gpus.nvml import Nvml, not_there
from workbench.resources.gpus.nvml_devices import ask
from workbench.resources.gpus.nvml_fields import Reading, WallClock, read_fields
from workbench.resources.rates import FIRST, Rate
from workbench.resources.unknown import Unknown

Both = tuple[float | Unknown, float | Unknown]
Counted = tuple[float | Unknown | None, float | Unknown | None]

# NVML_FI_DEV_PCIE_COUNT_TX_BYTES and _RX_BYTES; "value can be wrapped".
_FIELDS = ((197, 0), (198, 0))
# nvmlPcieUtilCounter_t: sent and received; in KB/s, which nvml.h does not define further.
_SENT, _RECEIVED = 0, 1
_KB = 1000
_WIDE = 1 << 32
_STALE_S = 5.0


class PcieMeter:
    """Rates from the byte counters of one GPU, if the counters have more than 32 bits."""

    def __init__(self) -> None:
        self._rates = (Rate(), Rate())
        self._clock = WallClock()
        self._wide = [False, False]

    def read(self, nvml: Nvml, handle: Any) -> Counted:
        """Return the bytes per second sent and received; None if a counter may have 32 bits."""
        found = read_fields(nvml, handle, _FIELDS)
        if isinstance(found, Unknown):
            return None, None
        if self._clock.was_set():
            self._rates = (Rate(), Rate())
        return self._rate(found[0], 0), self._rate(found[1], 1)

    def _rate(self, reading: Reading, which: int) -> float | Unknown | None:
        if isinstance(reading.value, Unknown):
            return None
        self._wide[which] |= reading.value >= _WIDE
        rate = self._rates[which].update(reading.value, reading.time_s)
        return rate if self._wide[which] else None


class PcieRounds:
    """Measures the throughput with NVML in a thread, one round over all GPUs at a time."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._found: dict[int, tuple[float, Both]] = {}
        self._refused: dict[int, Both] = {}
        self._closing = False

    def latest(self, position: int) -> Both:
        """Return the result of the last round for the GPU at a position in the list."""
        if position in self._refused:
            return self._refused[position]
        if position not in self._found:
            return FIRST, FIRST
        at, both = self._found[position]
        if time.monotonic() - at > _STALE_S:
            why = Unknown(f"NVML has not measured it for {_STALE_S:g} s")
            return why, why
        return both

    def start(self, nvml: Nvml, handles: Mapping[int, Any]) -> None:
        """Start a round over the GPUs, given by their positions, unless one is running."""
        handles = {n: handle for n, handle in handles.items() if n not in self._refused}
        if not handles or (self._thread is not None and self._thread.is_alive()):
            return
        self._thread = threading.Thread(
            target=self._round, args=(nvml, handles), name="workbench-pcie", daemon=True
        )
        self._thread.start()

    def close(self, limit_s: float) -> bool:
        """Wait for the running round, and return whether it has ended and NVML can be shut down."""
        self._closing = True
        if self._thread is None:
            return True
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _round(self, nvml: Nvml, handles: Mapping[int, Any]) -> None:
        for position, handle in handles.items():
            if self._closing:
                return
            both = (_measure(nvml, handle, _SENT), _measure(nvml, handle, _RECEIVED))
            self._found[position] = time.monotonic(), both
            if all(not_there(each) for each in both):
                self._refused[position] = both


def _measure(nvml: Nvml, handle: Any, counter: int) -> float | Unknown:
    found = ask(nvml, handle, "nvmlDeviceGetPcieThroughput", counter)
    return found if isinstance(found, Unknown) else float(found * _KB)
