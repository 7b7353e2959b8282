"""Probe the GPUs by NVML.

First list the GPUs, then read their state, their NVLinks and the connections between
them, each with its own time limit: if one of these hangs, only its values are `Unknown`.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

from workbench.resources.gpus.nvlinks import nvlinks
from workbench.resources.gpus.nvml import Library, Nvml
from workbench.resources.gpus.nvml_devices import ask, devices, mig_mode, pci_address
from workbench.resources.gpus.pairs import gpu_pairs
from workbench.resources.gpus.records import Gpu, GpuPair, NvLinks
from workbench.resources.gpus.state import GpuState, gpu_state, unknown_state
from workbench.resources.gpus.vgpu import VgpuProfile, decode_profile
from workbench.resources.time_limited_call import TimeLimitedCall
from workbench.resources.unknown import Unknown

T = TypeVar("T")
Device = tuple[int, Any, "str | Unknown", Any]

_STATE = TimeLimitedCall("NVML (state of the GPUs)")
_NVLINK = TimeLimitedCall("NVML (NVLinks)")
_PAIRS = TimeLimitedCall("NVML (pairs of GPUs)")
_NOT_READ = Unknown("not read yet")


def probe_gpus(
    library: Library | None, limit_s: float
) -> tuple[tuple[Gpu, ...], tuple[GpuPair, ...] | Unknown]:
    """Return the GPUs and vGPUs, and the connection of each pair.

    A GPU in MIG mode is replaced by its MIG devices.

    Parameters
    ----------
    library
        ``pynvml`` or a compatible object; None imports ``pynvml``.
    limit_s
        Time limit in total; the parts after the list share the time that is left.

    Raises
    ------
    NvmlUnavailable
        If there is no driver, or it does not work.
    """
    ends = time.monotonic() + limit_s
    nvml = Nvml(library)
    try:
        found = list(devices(nvml))
        gpus = _listed(nvml, found)
    except BaseException:
        nvml.close()
        raise
    return _detailed(nvml, found, gpus, ends)


def _detailed(
    nvml: Nvml, found: list[Device], gpus: tuple[Gpu, ...], ends: float
) -> tuple[tuple[Gpu, ...], tuple[GpuPair, ...] | Unknown]:
    states = _part(_STATE, lambda: [gpu_state(nvml, form, gpu) for _, _, form, gpu in found], ends)
    links = _part(_NVLINK, lambda: [nvlinks(nvml, form, gpu) for _, _, form, gpu in found], ends)
    physical = {index: gpu for index, _, _, gpu in found}
    pairs = _part(_PAIRS, lambda: gpu_pairs(nvml, physical.items()), ends)
    # While a call hangs in the library, closing it could hang too.
    if not any(isinstance(part, Unknown) for part in (states, links, pairs)):
        nvml.close()
    together = zip(
        gpus, _each(states, unknown_state, len(gpus)), _each(links, _same, len(gpus)), strict=True
    )
    return tuple(_with(gpu, state, link) for gpu, state, link in together), pairs


def _part(call: TimeLimitedCall, ask_all: Callable[[], T], ends: float) -> T | Unknown:
    # Half of the remaining time, so that time is left even if all three parts hang.
    limit_s = round(max(0.0, ends - time.monotonic()) / 2, 2)
    try:
        return call.run(ask_all, limit_s)
    except Exception as error:  # noqa: BLE001  # a part that fails only affects its own values
        return Unknown(f"{type(error).__name__}: {error}")


def _each(part: list[T] | Unknown, unknown: Callable[[Unknown], Any], count: int) -> list[Any]:
    return [unknown(part)] * count if isinstance(part, Unknown) else part


def _same(why: Unknown) -> Unknown:
    return why


def _with(gpu: Gpu, state: GpuState, links: NvLinks | Unknown) -> Gpu:
    values = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    return dataclasses.replace(gpu, nvlink=links, **values)


def _listed(nvml: Nvml, found: list[Device]) -> tuple[Gpu, ...]:
    driver = nvml.ask("nvmlSystemGetDriverVersion")
    cuda = _cuda_version(nvml.ask("nvmlSystemGetCudaDriverVersion"))
    return tuple(_gpu(nvml, device, driver, cuda) for device in found)


def _gpu(nvml: Nvml, device: Device, driver: str | Unknown, cuda: str | Unknown) -> Gpu:
    index, handle, form, parent = device
    name = ask(nvml, handle, "nvmlDeviceGetName")
    memory = ask(nvml, handle, "nvmlDeviceGetMemoryInfo")
    profile = _profile(name, form)
    state = unknown_state(_NOT_READ)
    return Gpu(
        index=index,
        uuid=ask(nvml, handle, "nvmlDeviceGetUUID"),
        name=name,
        pci_address=pci_address(ask(nvml, parent, "nvmlDeviceGetPciInfo")),
        memory_bytes=memory if isinstance(memory, Unknown) else memory.total,
        form=form,
        vgpu_profile=profile,
        driver_version=driver,
        cuda_version=cuda,
        compute_capability=_capability(ask(nvml, parent, "nvmlDeviceGetCudaComputeCapability")),
        vgpu=_decoded(profile),
        licence=state.licence,
        ecc=state.ecc,
        clocks=state.clocks,
        pcie_link=state.pcie_link,
        persistence_mode=state.persistence_mode,
        compute_mode=state.compute_mode,
        nvlink=_NOT_READ,
        mig_mode=mig_mode(nvml, parent),
    )


def _profile(name: str | Unknown, form: str | Unknown) -> str | Unknown:
    if form != "vgpu" or isinstance(name, Unknown):
        return form if isinstance(form, Unknown) else Unknown("not a vGPU")
    return re.sub(r"^(GRID|NVIDIA) ", "", name)


def _decoded(profile: str | Unknown) -> VgpuProfile | Unknown:
    if isinstance(profile, Unknown):
        return profile
    return decode_profile(profile) or Unknown(f"{profile} is not a profile name in NVIDIA's format")


def _cuda_version(number: int | Unknown) -> str | Unknown:
    """Return ``"13.0"`` for 13000 (CUDA's encoding: 1000 * major + 10 * minor)."""
    if isinstance(number, Unknown):
        return number
    return f"{number // 1000}.{number % 1000 // 10}"


def _capability(pair: tuple[int, int] | Unknown) -> str | Unknown:
    return pair if isinstance(pair, Unknown) else f"{pair[0]}.{pair[1]}"
