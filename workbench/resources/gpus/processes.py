"""List the processes that use a GPU by NVML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workbench.resources.gpus.nvml import Nvml, too_old
from workbench.resources.gpus.nvml_devices import ask
from workbench.resources.unknown import Unknown

_CALLS = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
# Not the unversioned name: with a driver that lacks the call, it raises another exception.
# Drivers before 510 have only the second version.
_VERSIONS = ("_v3", "_v2")
_NO_MEMORY = Unknown("the driver does not report the memory of this process")


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
    found: dict[int, GpuProcess] = {}
    refused = None
    for call in _CALLS:
        listed = _list(nvml, handle, call)
        if isinstance(listed, Unknown):
            refused = refused or (listed if call == _CALLS[0] else None)
            continue
        for one in listed:
            used = one.usedGpuMemory
            found[one.pid] = GpuProcess(one.pid, index, _NO_MEMORY if used is None else used)
    return refused if refused is not None else tuple(found.values())


def _list(nvml: Nvml, handle: Any, call: str) -> Any:
    newest, older = _VERSIONS
    found = ask(nvml, handle, call + newest)
    return ask(nvml, handle, call + older) if too_old(found) else found
