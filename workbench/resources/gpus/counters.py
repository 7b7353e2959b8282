"""Measure the utilization of GPUs; NVML stays open between samples."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

from workbench.resources.gpus.idle import IdleTime
from workbench.resources.gpus.nvlink_counters import NvLinkMeter
from workbench.resources.gpus.nvml import Library, Nvml, NvmlUnavailable
from workbench.resources.gpus.nvml_devices import ask, devices
from workbench.resources.gpus.pcie_counters import Both, PcieMeter, PcieRounds
from workbench.resources.gpus.processes import GpuProcess, gpu_processes
from workbench.resources.gpus.state import MEMORY_CLOCK, SM_CLOCK, held_by
from workbench.resources.time_limited_call import TimeLimitedCall
from workbench.resources.unknown import Unknown
from workbench.resources.usage import GpuUse

_TEMPERATURE_GPU = 0  # nvmlTemperatureSensors_t
_NO_NVLINK = Unknown("a MIG device has no NVLink")
_UNSEEN = Unknown("processes outside this container cannot be seen")
_LEVELS = (
    "utilization_percent",
    "memory_used_bytes",
    "power_w",
    "temperature_c",
    "power_limit_w",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "held_by",
    "nvlink_tx_bytes_per_s",
    "nvlink_rx_bytes_per_s",
    "pcie_tx_bytes_per_s",
    "pcie_rx_bytes_per_s",
    "idle_s",
)
"""Fields of a GPU that are unknown while NVML does not answer."""


@dataclass(frozen=True)
class GpuReading:
    """All GPUs, and the processes that NVML lists on them."""

    gpus: tuple[GpuUse, ...]
    processes: tuple[GpuProcess, ...]


class _Device:
    """One device, and its state between readings."""

    def __init__(self, index: int, handle: Any, form: str | Unknown, parent: Any) -> None:
        self.index = index
        self.handle = handle
        self.parent = parent
        self.uuid: str | Unknown = Unknown("not asked yet")
        self.links = None if form == "mig" else NvLinkMeter()
        self.pcie = PcieMeter()
        self.idle = IdleTime()


class GpuMeter:
    """Reads all GPUs within a common time limit.

    The first reading opens NVML and lists the devices. Without a driver there are none.

    Parameters
    ----------
    library
        ``pynvml`` or a compatible object; None imports ``pynvml``.
    limit_s
        Time limit of one reading, in seconds.
    sees_all
        Whether the processes of the VM are visible, not only those of a container.
    """

    def __init__(self, library: Library | None, limit_s: float, *, sees_all: bool = True) -> None:
        self._library = library
        self._limit_s = limit_s
        self._sees_all = sees_all
        self._nvml_call = TimeLimitedCall("NVML")
        self._nvml: Nvml | None = None
        self._devices: list[_Device] | None = None
        self._rounds = PcieRounds()
        self._last = GpuReading((), ())
        self._missed = False

    def read(self) -> GpuReading:
        """Return the utilization of each GPU; all values are `Unknown` while NVML hangs."""
        found = self._nvml_call.run(self._read, self._limit_s)
        if isinstance(found, Unknown):
            self._missed = True
            return _unanswered(self._last, found)
        self._last = found
        return found

    def close(self) -> None:
        """Shut NVML down, unless it hangs."""
        if self._rounds.close(self._limit_s) and self._nvml is not None:
            self._nvml_call.run(self._nvml.close, self._limit_s)
        self._nvml, self._devices, self._rounds = None, None, PcieRounds()

    def _read(self) -> GpuReading:
        if self._devices is None:
            self._devices = self._open()
        if self._nvml is None:
            return GpuReading((), ())
        if self._missed:  # idle time counts only what was observed
            self._missed = False
            for device in self._devices:
                device.idle = IdleTime()
        nvml = self._nvml
        gpus: list[GpuUse] = []
        listed: list[GpuProcess] = []
        measured: dict[int, Any] = {}
        for position, device in enumerate(self._devices):
            processes = gpu_processes(nvml, device.index, device.handle)
            tx, rx = device.pcie.read(nvml, device.handle)
            last_tx, last_rx = self._rounds.latest(position)
            if tx is None or rx is None:
                measured[position] = device.handle
            pcie = last_tx if tx is None else tx, last_rx if rx is None else rx
            gpus.append(self._gpu(nvml, device, processes, pcie))
            listed += [] if isinstance(processes, Unknown) else processes
        self._rounds.start(nvml, measured)
        return GpuReading(tuple(gpus), tuple(listed))

    def _open(self) -> list[_Device]:
        try:
            self._nvml = Nvml(self._library)
        except NvmlUnavailable:
            return []
        return [_Device(*found) for found in devices(self._nvml)]

    def _gpu(
        self,
        nvml: Nvml,
        device: _Device,
        processes: tuple[GpuProcess, ...] | Unknown,
        pcie: Both,
    ) -> GpuUse:
        handle, parent = device.handle, device.parent
        if isinstance(device.uuid, Unknown):
            device.uuid = ask(nvml, handle, "nvmlDeviceGetUUID")
        rates = ask(nvml, handle, "nvmlDeviceGetUtilizationRates")
        busy = rates if isinstance(rates, Unknown) else float(rates.gpu)
        memory = ask(nvml, handle, "nvmlDeviceGetMemoryInfo")
        links = device.links.read(nvml, handle) if device.links else (_NO_NVLINK, _NO_NVLINK)
        return GpuUse(
            index=device.index,
            uuid=device.uuid,
            utilization_percent=busy,
            memory_used_bytes=memory if isinstance(memory, Unknown) else memory.used,
            memory_total_bytes=memory if isinstance(memory, Unknown) else memory.total,
            power_w=_watts(ask(nvml, handle, "nvmlDeviceGetPowerUsage")),
            temperature_c=ask(nvml, handle, "nvmlDeviceGetTemperature", _TEMPERATURE_GPU),
            power_limit_w=_watts(ask(nvml, handle, "nvmlDeviceGetEnforcedPowerLimit")),
            sm_clock_mhz=ask(nvml, parent, "nvmlDeviceGetClockInfo", SM_CLOCK),
            memory_clock_mhz=ask(nvml, parent, "nvmlDeviceGetClockInfo", MEMORY_CLOCK),
            held_by=held_by(nvml, parent),
            nvlink_tx_bytes_per_s=links[0],
            nvlink_rx_bytes_per_s=links[1],
            pcie_tx_bytes_per_s=pcie[0],
            pcie_rx_bytes_per_s=pcie[1],
            idle_s=device.idle.update(busy, self._allocated(processes), time.monotonic()),
        )

    def _allocated(self, processes: tuple[GpuProcess, ...] | Unknown) -> bool | Unknown:
        if isinstance(processes, Unknown):
            return processes
        return True if processes else (False if self._sees_all else _UNSEEN)


def _unanswered(last: GpuReading, why: Unknown) -> GpuReading:
    levels: dict[str, Any] = dict.fromkeys(_LEVELS, why)
    gpus = (dataclasses.replace(gpu, **levels) for gpu in last.gpus)
    processes = (dataclasses.replace(one, memory_used_bytes=why) for one in last.processes)
    return GpuReading(tuple(gpus), tuple(processes))


def _watts(milliwatts: int | Unknown) -> float | Unknown:
    return milliwatts if isinstance(milliwatts, Unknown) else milliwatts / 1000
