"""Probe the GPUs by NVML.

After the list of GPUs, three parts are read, each with its own time limit: the states, the
NVLinks, and the connections between GPUs. If one of them hangs, only its values are `Unknown`.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

from workbench.resources.gpus.nvlinks import gpu_pairs, nvlinks
from workbench.resources.gpus.nvml import (
    Library,
    Nvml,
    devices,
    mig_mode,
    pci_address,
    query,
    read_memory,
)
from workbench.resources.gpus.records import Gpu, GpuPair
from workbench.resources.gpus.state import gpu_state
from workbench.resources.gpus.vgpu import VgpuProfile, decode_profile
from workbench.resources.time_limited_call import TimeLimitedCall
from workbench.resources.unknown import Unknown, if_known

_log = logging.getLogger(__name__)

T = TypeVar("T")
Device = tuple[int, Any, "str | Unknown", Any]
"""Index, handle, form and physical GPU's handle of a device, as `nvml.devices` yields them."""

_STATE = TimeLimitedCall("NVML (state of the GPUs)")
_NVLINK = TimeLimitedCall("NVML (NVLinks)")
_PAIRS = TimeLimitedCall("NVML (pairs of GPUs)")
_STATE_FIELDS = ("licence", "ecc", "clocks", "pcie_link", "persistence_mode", "compute_mode")


def probe_gpus(
    library: Library | None, limit_s: float
) -> tuple[tuple[Gpu, ...], tuple[GpuPair, ...] | Unknown]:
    """Return the GPUs and vGPUs, and the connection of each pair.

    A GPU in MIG mode is replaced by its MIG devices. The parts that are read after the list
    share the rest of `limit_s`.
    """
    ends = time.monotonic() + limit_s
    nvml = Nvml(library)
    try:
        listed = list(devices(nvml))
        gpus = _list_gpus(nvml, listed)
    except BaseException:
        nvml.close()
        raise
    return _add_details(nvml, listed, gpus, ends)


def _add_details(
    nvml: Nvml, listed: list[Device], gpus: tuple[Gpu, ...], ends: float
) -> tuple[tuple[Gpu, ...], tuple[GpuPair, ...] | Unknown]:
    states = _read_part(
        _STATE, lambda: [gpu_state(nvml, form, gpu) for _, _, form, gpu in listed], ends
    )
    links = _read_part(
        _NVLINK, lambda: [nvlinks(nvml, form, gpu) for _, _, form, gpu in listed], ends
    )
    physical = {index: gpu for index, _, _, gpu in listed}
    pairs = _read_part(_PAIRS, lambda: gpu_pairs(nvml, physical.items()), ends)
    # If a call hangs in the library, closing it could hang too.
    if not any(isinstance(part, Unknown) for part in (states, links, pairs)):
        nvml.close()
    else:
        _log.info("NVML stays open: a part of the GPUs' state could not be read")
    if isinstance(states, Unknown):
        states = [dict.fromkeys(_STATE_FIELDS, states)] * len(gpus)
    if isinstance(links, Unknown):
        links = [links] * len(gpus)  # type: ignore[list-item]
    detailed = (
        dataclasses.replace(gpu, nvlink=link, **state)
        for gpu, state, link in zip(gpus, states, links, strict=True)
    )
    return tuple(detailed), pairs


def _read_part(call: TimeLimitedCall, read: Callable[[], T], ends: float) -> T | Unknown:
    # Each call gets half of the remaining time: if it hangs, some time is left for the next.
    limit_s = round(max(0.0, ends - time.monotonic()) / 2, 2)
    try:
        return call.run(read, limit_s)
    except Exception as error:  # noqa: BLE001  # a query that fails only affects its own values
        return Unknown(f"{type(error).__name__}: {error}")


def _list_gpus(nvml: Nvml, listed: list[Device]) -> tuple[Gpu, ...]:
    driver = nvml.query("nvmlSystemGetDriverVersion")
    cuda = if_known(nvml.query("nvmlSystemGetCudaDriverVersion"), _cuda_version)
    return tuple(_gpu(nvml, device, driver, cuda) for device in listed)


def _gpu(nvml: Nvml, device: Device, driver: str | Unknown, cuda: str | Unknown) -> Gpu:
    index, handle, form, parent = device
    name = query(nvml, handle, "nvmlDeviceGetName")
    profile = _profile(name, form)
    not_read: dict[str, Any] = dict.fromkeys((*_STATE_FIELDS, "nvlink"), Unknown("not read yet"))
    return Gpu(
        index=index,
        uuid=query(nvml, handle, "nvmlDeviceGetUUID"),
        name=name,
        pci_address=pci_address(query(nvml, parent, "nvmlDeviceGetPciInfo")),
        memory_bytes=if_known(read_memory(nvml, handle), lambda info: int(info.total)),
        form=form,
        vgpu_profile=profile,
        driver_version=driver,
        cuda_version=cuda,
        compute_capability=if_known(
            query(nvml, parent, "nvmlDeviceGetCudaComputeCapability"),
            lambda version: f"{version[0]}.{version[1]}",
        ),
        vgpu=if_known(profile, _decode),
        mig_mode=mig_mode(nvml, parent),
        **not_read,
    )


def _profile(name: str | Unknown, form: str | Unknown) -> str | Unknown:
    if form != "vgpu" or isinstance(name, Unknown):
        return form if isinstance(form, Unknown) else Unknown("not a vGPU")
    return re.sub(r"^(GRID|NVIDIA) ", "", name)


def _decode(profile: str) -> VgpuProfile | Unknown:
    return decode_profile(profile) or Unknown(f"{profile} is not a profile name in NVIDIA's format")


def _cuda_version(number: int) -> str:
    """Return ``"13.0"`` for 13000 (CUDA's encoding: 1000 * major + 10 * minor)."""
    return f"{number // 1000}.{number % 1000 // 10}"
