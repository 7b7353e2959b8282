"""Measure the use of GPUs, and list the processes on them; NVML stays open between samples."""

from __future__ import annotations

import dataclasses
import logging
import time
from dataclasses import dataclass
from typing import Any

from workbench.resources.gpus.link_counters import NvLinkMeter, PcieMeter, PcieRounds, TxRx
from workbench.resources.gpus.nvml import (
    Library,
    Nvml,
    NvmlUnavailable,
    devices,
    is_missing_call,
    query,
    read_memory,
)
from workbench.resources.gpus.state import MEMORY_CLOCK, SM_CLOCK, read_held_by
from workbench.resources.time_limited_call import TimeLimitedCall
from workbench.resources.unknown import Unknown, if_known
from workbench.resources.usage import GpuUse

_log = logging.getLogger(__name__)

_PROCESS_CALLS = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
# The unversioned name is not used: with a driver that lacks the call, it raises another exception.
# Drivers before 510 have only the second version.
_CALL_VERSIONS = ("_v3", "_v2")
_NO_MEMORY = Unknown("the driver does not report the memory of this process")
_TEMPERATURE_GPU = 0  # nvmlTemperatureSensors_t
_NO_NVLINK = Unknown("a MIG device has no NVLink")
_UNSEEN = Unknown("processes outside this container cannot be seen")
_CONSTANT = {"index", "uuid", "memory_total_bytes"}
"""Fields of a GPU that remain known while NVML does not answer."""


class IdleTime:
    """Counts how long a GPU has been idle while a process uses its memory, in seconds.

    Examples
    --------
    >>> idle = IdleTime()
    >>> idle.update(0.0, True, now=100.0)
    0.0
    >>> idle.update(0.0, True, now=130.0)
    30.0
    >>> idle.update(85.0, True, now=140.0)
    0.0
    """

    def __init__(self) -> None:
        self._since: float | None = None

    def update(
        self, utilization: float | Unknown, allocated: bool | Unknown, now: float
    ) -> float | Unknown:
        """Add a sample at `now` (monotonic, in seconds), and return the idle seconds so far."""
        value = self._value_unless_idle(utilization, allocated)
        if value is not None:
            self._since = None
            return value
        if self._since is None:
            self._since = now
        return now - self._since

    @staticmethod
    def _value_unless_idle(
        utilization: float | Unknown, allocated: bool | Unknown
    ) -> float | Unknown | None:
        """Return None if the GPU is idle with memory allocated, else 0 or `Unknown`."""
        if isinstance(utilization, Unknown):
            return 0.0 if allocated is False else utilization
        if utilization > 0:
            return 0.0
        if isinstance(allocated, Unknown):
            return allocated
        return None if allocated else 0.0


@dataclass(frozen=True)
class GpuProcess:
    """A process on one device.

    Attributes
    ----------
    pid
        The driver's process id.
    index
        NVML's index of the GPU.
    """

    pid: int
    index: int
    memory_used_bytes: int | Unknown


def gpu_processes(nvml: Nvml, index: int, handle: Any) -> tuple[GpuProcess, ...] | Unknown:
    """Return the compute and graphics processes on a device, each once."""
    processes: dict[int, GpuProcess] = {}
    compute_error = None
    for call in _PROCESS_CALLS:
        listed = _list(nvml, handle, call)
        if isinstance(listed, Unknown):
            compute_error = compute_error or (listed if call == _PROCESS_CALLS[0] else None)
            continue
        for process in listed:
            used = process.usedGpuMemory
            processes[process.pid] = GpuProcess(
                process.pid, index, _NO_MEMORY if used is None else used
            )
    return compute_error if compute_error is not None else tuple(processes.values())


def _list(nvml: Nvml, handle: Any, call: str) -> Any:
    newest, older = _CALL_VERSIONS
    processes = query(nvml, handle, call + newest)
    return query(nvml, handle, call + older) if is_missing_call(processes) else processes


@dataclass(frozen=True)
class GpuReading:
    """All GPUs, and the processes that NVML lists on them."""

    gpus: tuple[GpuUse, ...]
    processes: tuple[GpuProcess, ...]


class _MeteredDevice:
    """A device, and its state between readings."""

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

    The first reading opens NVML and lists the devices. Without a driver, the list is empty.
    `sees_all` says whether the processes of the VM are visible, not only those of a container.
    """

    def __init__(self, library: Library | None, limit_s: float, *, sees_all: bool = True) -> None:
        self._library = library
        self._limit_s = limit_s
        self._sees_all = sees_all
        self._nvml_call = TimeLimitedCall("NVML")
        self._nvml: Nvml | None = None
        self._devices: list[_MeteredDevice] | None = None
        self._rounds = PcieRounds()
        self._last = GpuReading((), ())
        self._had_timeout = False

    def read(self) -> GpuReading:
        """Return the utilization of each GPU; all values are `Unknown` while NVML hangs."""
        reading = self._nvml_call.run(self._read, self._limit_s)
        if isinstance(reading, Unknown):
            self._had_timeout = True
            return _with_unknown_use(self._last, reading)
        self._last = reading
        return reading

    def close(self) -> None:
        """Shut NVML down, unless it hangs."""
        if self._rounds.close(self._limit_s) and self._nvml is not None:
            self._nvml_call.run(self._nvml.close, self._limit_s)
        self._nvml = None
        self._devices = None
        self._rounds = PcieRounds()

    def _read(self) -> GpuReading:
        if self._devices is None:
            self._devices = self._open()
        if self._nvml is None:
            return GpuReading((), ())
        if self._had_timeout:  # the GPU may have been busy: count idle time from now on
            self._had_timeout = False
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
            pcie = (last_tx if tx is None else tx, last_rx if rx is None else rx)
            gpus.append(self._gpu(nvml, device, processes, pcie))
            listed += [] if isinstance(processes, Unknown) else processes
        self._rounds.start(nvml, measured)
        return GpuReading(tuple(gpus), tuple(listed))

    def _open(self) -> list[_MeteredDevice]:
        try:
            self._nvml = Nvml(self._library)
        except NvmlUnavailable as error:
            _log.debug("No GPUs are measured: %s", error)
            return []
        opened = [_MeteredDevice(*device) for device in devices(self._nvml)]
        _log.debug("NVML is open; devices that are measured: %d", len(opened))
        return opened

    def _gpu(
        self,
        nvml: Nvml,
        device: _MeteredDevice,
        processes: tuple[GpuProcess, ...] | Unknown,
        pcie: TxRx,
    ) -> GpuUse:
        handle = device.handle
        parent = device.parent
        if isinstance(device.uuid, Unknown):
            device.uuid = query(nvml, handle, "nvmlDeviceGetUUID")
        rates = query(nvml, handle, "nvmlDeviceGetUtilizationRates")
        busy = if_known(rates, lambda utilization: float(utilization.gpu))
        memory = read_memory(nvml, handle)
        links = device.links.read(nvml, handle) if device.links else (_NO_NVLINK, _NO_NVLINK)
        return GpuUse(
            index=device.index,
            uuid=device.uuid,
            utilization_percent=busy,
            memory_used_bytes=if_known(memory, lambda info: int(info.used)),
            memory_total_bytes=if_known(memory, lambda info: int(info.total)),
            power_w=if_known(query(nvml, handle, "nvmlDeviceGetPowerUsage"), _watts),
            temperature_c=query(nvml, handle, "nvmlDeviceGetTemperature", _TEMPERATURE_GPU),
            power_limit_w=if_known(query(nvml, handle, "nvmlDeviceGetEnforcedPowerLimit"), _watts),
            sm_clock_mhz=query(nvml, parent, "nvmlDeviceGetClockInfo", SM_CLOCK),
            memory_clock_mhz=query(nvml, parent, "nvmlDeviceGetClockInfo", MEMORY_CLOCK),
            held_by=read_held_by(nvml, parent),
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


def _with_unknown_use(last: GpuReading, reason: Unknown) -> GpuReading:
    """Return the last reading with all values `Unknown` that may have changed since then."""
    names = {field.name for field in dataclasses.fields(GpuUse)} - _CONSTANT
    unknown: dict[str, Any] = dict.fromkeys(names, reason)
    gpus = (dataclasses.replace(gpu, **unknown) for gpu in last.gpus)
    processes = (
        dataclasses.replace(process, memory_used_bytes=reason) for process in last.processes
    )
    return GpuReading(tuple(gpus), tuple(processes))


def _watts(milliwatts: int) -> float:
    return milliwatts / 1000
