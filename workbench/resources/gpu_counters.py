"""What each GPU does now; NVML stays open between samples."""

from __future__ import annotations

from typing import Any

from workbench.resources.lanes import Lane
from workbench.resources.nvml import Library, Nvml, NvmlUnavailable
from workbench.resources.nvml_devices import ask, devices
from workbench.resources.unknown import Unknown
from workbench.resources.usage import GpuUse

_TEMPERATURE_GPU = 0  # nvmlTemperatureSensors_t


class GpuMeter:
    """Reads all GPUs, within a time limit for all of them together.

    NVML is opened by the first reading, which lists the devices; a meter that
    found no driver stays empty.

    Parameters
    ----------
    library
        ``pynvml`` or what behaves like it; None imports ``pynvml``.
    limit_s
        Seconds that one reading may take.
    """

    def __init__(self, library: Library | None, limit_s: float) -> None:
        self._library = library
        self._limit_s = limit_s
        self._lane = Lane("NVML")
        self._nvml: Nvml | None = None
        self._devices: list[tuple[int, Any]] | None = None
        self._last: tuple[GpuUse, ...] = ()

    def read(self) -> tuple[GpuUse, ...]:
        """Give every GPU's use; all `Unknown` while NVML does not answer."""
        found = self._lane.run(self._read, self._limit_s)
        if isinstance(found, Unknown):
            return tuple(_unknown(gpu, found) for gpu in self._last)
        self._last = found
        return found

    def close(self) -> None:
        """Let NVML go, unless it hangs."""
        if self._nvml is not None:
            self._lane.run(self._nvml.close, self._limit_s)
        self._nvml, self._devices = None, None

    def _read(self) -> tuple[GpuUse, ...]:
        if self._devices is None:
            self._devices = self._open()
        if self._nvml is None:
            return ()
        nvml = self._nvml
        return tuple(_gpu(nvml, index, handle) for index, handle in self._devices)

    def _open(self) -> list[tuple[int, Any]]:
        try:
            self._nvml = Nvml(self._library)
        except NvmlUnavailable:
            return []
        return [(index, handle) for index, handle, _, _ in devices(self._nvml)]


def _gpu(nvml: Nvml, index: int, handle: Any) -> GpuUse:
    rates = ask(nvml, handle, "nvmlDeviceGetUtilizationRates")
    memory = ask(nvml, handle, "nvmlDeviceGetMemoryInfo")
    milliwatts = ask(nvml, handle, "nvmlDeviceGetPowerUsage")
    return GpuUse(
        index=index,
        uuid=ask(nvml, handle, "nvmlDeviceGetUUID"),
        utilization_percent=rates if isinstance(rates, Unknown) else float(rates.gpu),
        memory_used_bytes=memory if isinstance(memory, Unknown) else memory.used,
        memory_total_bytes=memory if isinstance(memory, Unknown) else memory.total,
        power_w=milliwatts if isinstance(milliwatts, Unknown) else milliwatts / 1000,
        temperature_c=ask(nvml, handle, "nvmlDeviceGetTemperature", _TEMPERATURE_GPU),
    )


def _unknown(gpu: GpuUse, why: Unknown) -> GpuUse:
    return GpuUse(gpu.index, gpu.uuid, why, why, gpu.memory_total_bytes, why, why)
