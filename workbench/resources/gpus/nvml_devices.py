"""Walking the devices that NVML knows, and asking about one of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from workbench.resources.gpus.nvml import Nvml
from workbench.resources.unknown import Unknown

# nvmlGpuVirtualizationMode_t; 3 and 4 are the hypervisor's own view of a whole GPU.
_FORMS = {0: "whole", 1: "passthrough", 2: "vgpu", 3: "whole", 4: "whole"}
_MIG_ENABLED = 1


def devices(nvml: Nvml) -> Iterator[tuple[int, Any, str | Unknown, Any]]:
    """Walk all devices that work can run on.

    Yields
    ------
    tuple
        NVML's index, the device's handle, its form, and the handle of the
        GPU that it is cut from (itself unless it is a MIG device).
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
    """Ask NVML about one device; a handle that is `Unknown` answers for all."""
    return handle if isinstance(handle, Unknown) else nvml.ask(call, handle, *arguments)


def mig_mode(nvml: Nvml, handle: Any) -> bool | Unknown:
    """Whether a GPU is in MIG mode."""
    mode = ask(nvml, handle, "nvmlDeviceGetMigMode")
    return mode if isinstance(mode, Unknown) else bool(mode[0] == _MIG_ENABLED)


def pci_address(info: Any) -> str | Unknown:
    """Write an ``nvmlPciInfo_t`` as sysfs does: a domain of 4 digits, NVML's has 8."""
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
    # A MIG-backed vGPU is one device to its VM, whatever its own MIG mode says.
    if form == "vgpu" or mig_mode(nvml, handle) is not True:
        return []
    most = nvml.ask("nvmlDeviceGetMaxMigDeviceCount", handle)
    slots = range(0 if isinstance(most, Unknown) else most)
    found = (nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot) for slot in slots)
    return [device for device in found if not isinstance(device, Unknown)]
