"""List the devices of NVML, and query one of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from workbench.resources.gpus.nvml import Nvml
from workbench.resources.unknown import Unknown

# nvmlGpuVirtualizationMode_t; 3 and 4 are the hypervisor's own view of a physical GPU.
_FORMS = {0: "whole", 1: "passthrough", 2: "vgpu", 3: "whole", 4: "whole"}
_MIG_ENABLED = 1


def devices(nvml: Nvml) -> Iterator[tuple[int, Any, str | Unknown, Any]]:
    """Yield all devices that can run work.

    Yields
    ------
    tuple
        NVML's index, the device's handle, its form, and the handle of its physical GPU
        (the same handle unless it is a MIG device).
    """
    count = nvml.ask("nvmlDeviceGetCount")
    for index in range(0 if isinstance(count, Unknown) else count):
        handle = nvml.ask("nvmlDeviceGetHandleByIndex", index)
        form = handle if isinstance(handle, Unknown) else _form(nvml, handle)
        parts = [] if isinstance(form, Unknown) else _mig_devices(nvml, handle, form)
        for part in parts:
            yield index, part, "mig", handle
        if not parts:
            yield index, handle, form, handle


def ask(nvml: Nvml, handle: Any, call: str, *arguments: Any) -> Any:
    """Call NVML for one device; the result is the handle itself if that is `Unknown`."""
    return handle if isinstance(handle, Unknown) else nvml.ask(call, handle, *arguments)


def mig_mode(nvml: Nvml, handle: Any) -> bool | Unknown:
    """Return whether a GPU is in MIG mode."""
    mode = ask(nvml, handle, "nvmlDeviceGetMigMode")
    return mode if isinstance(mode, Unknown) else bool(mode[0] == _MIG_ENABLED)


def pci_address(info: Any) -> str | Unknown:
    """Return the address in an ``nvmlPciInfo_t`` in the form of sysfs (4-digit domain)."""
    if isinstance(info, Unknown):
        return info
    text = info.busId.decode() if isinstance(info.busId, bytes) else str(info.busId)
    match = re.fullmatch(r"([0-9a-f]+):(.+)", text.lower())
    if match is None:
        return Unknown(f"the driver gives {text!r} for its PCI address")
    return f"{int(match[1], 16):04x}:{match[2]}"


def _form(nvml: Nvml, handle: Any) -> str | Unknown:
    mode = nvml.ask("nvmlDeviceGetVirtualizationMode", handle)
    if isinstance(mode, Unknown):
        return mode
    return _FORMS.get(mode, Unknown(f"the driver reports virtualization mode {mode}"))


def _mig_devices(nvml: Nvml, handle: Any, form: str | Unknown) -> list[Any]:
    # A MIG-backed vGPU is a single device in its VM, whatever its MIG mode is.
    if form == "vgpu" or mig_mode(nvml, handle) is not True:
        return []
    most = nvml.ask("nvmlDeviceGetMaxMigDeviceCount", handle)
    slots = range(0 if isinstance(most, Unknown) else most)
    found = (nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot) for slot in slots)
    return [device for device in found if not isinstance(device, Unknown)]
