"""Probe of the GPUs, by NVML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from workbench.resources.nvml import Library, Nvml
from workbench.resources.snapshot import Gpu
from workbench.resources.unknown import Unknown

# nvmlGpuVirtualizationMode_t; 3 and 4 are the hypervisor's own view of a whole GPU.
_FORMS = {0: "whole", 1: "passthrough", 2: "vgpu", 3: "whole", 4: "whole"}
_MIG_ENABLED = 1


def probe_gpus(library: Library | None) -> tuple[Gpu, ...]:
    """List GPUs and vGPUs; a GPU cut up by MIG gives its MIG devices instead.

    Raises
    ------
    NvmlUnavailable
        There is no driver, or it does not work.
    """
    nvml = Nvml(library)
    try:
        driver = nvml.ask("nvmlSystemGetDriverVersion")
        cuda = _cuda_version(nvml.ask("nvmlSystemGetCudaDriverVersion"))
        return tuple(
            _gpu(nvml, index, handle, form, parent, driver, cuda)
            for index, handle, form, parent in devices(nvml)
        )
    finally:
        nvml.close()


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


def _form(nvml: Nvml, handle: Any) -> str | Unknown:
    mode = nvml.ask("nvmlDeviceGetVirtualizationMode", handle)
    if isinstance(mode, Unknown):
        return mode
    return _FORMS.get(mode, Unknown(f"the driver reports virtualization mode {mode}"))


def _mig_devices(nvml: Nvml, handle: Any, form: str | Unknown) -> list[Any]:
    # A MIG-backed vGPU is one device to its VM, whatever its own MIG mode says.
    mode = nvml.ask("nvmlDeviceGetMigMode", handle)
    if form == "vgpu" or isinstance(mode, Unknown) or mode[0] != _MIG_ENABLED:
        return []
    most = nvml.ask("nvmlDeviceGetMaxMigDeviceCount", handle)
    slots = range(0 if isinstance(most, Unknown) else most)
    found = (nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot) for slot in slots)
    return [device for device in found if not isinstance(device, Unknown)]


def _gpu(
    nvml: Nvml,
    index: int,
    handle: Any,
    form: str | Unknown,
    parent: Any,
    driver: str | Unknown,
    cuda: str | Unknown,
) -> Gpu:
    name = ask(nvml, handle, "nvmlDeviceGetName")
    memory = ask(nvml, handle, "nvmlDeviceGetMemoryInfo")
    return Gpu(
        index=index,
        uuid=ask(nvml, handle, "nvmlDeviceGetUUID"),
        name=name,
        pci_address=_pci_address(ask(nvml, parent, "nvmlDeviceGetPciInfo")),
        memory_bytes=memory if isinstance(memory, Unknown) else memory.total,
        form=form,
        vgpu_profile=_profile(name, form),
        driver_version=driver,
        cuda_version=cuda,
        compute_capability=_capability(ask(nvml, parent, "nvmlDeviceGetCudaComputeCapability")),
    )


def _profile(name: str | Unknown, form: str | Unknown) -> str | Unknown:
    if form != "vgpu" or isinstance(name, Unknown):
        return form if isinstance(form, Unknown) else Unknown("not a vGPU")
    return re.sub(r"^(GRID|NVIDIA) ", "", name)


def _cuda_version(number: int | Unknown) -> str | Unknown:
    """13000 is 13.0 (CUDA's own coding: 1000 * major + 10 * minor)."""
    if isinstance(number, Unknown):
        return number
    return f"{number // 1000}.{number % 1000 // 10}"


def _capability(pair: tuple[int, int] | Unknown) -> str | Unknown:
    return pair if isinstance(pair, Unknown) else f"{pair[0]}.{pair[1]}"


def _pci_address(info: Any) -> str | Unknown:
    """NVML writes the domain with 8 digits, sysfs with 4 unless it needs more."""
    if isinstance(info, Unknown):
        return info
    text = info.busId.decode() if isinstance(info.busId, bytes) else str(info.busId)
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"
