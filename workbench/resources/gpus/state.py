"""Read the state of a GPU by NVML: ECC, clocks, PCIe link and modes.

These belong to the physical GPU: a MIG device has those of its GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from workbench.resources.gpus.licences import licence
from workbench.resources.gpus.nvml import Nvml
from workbench.resources.gpus.nvml_devices import ask
from workbench.resources.gpus.records import Clocks, Ecc, Licence, PcieLink
from workbench.resources.unknown import Unknown

T = TypeVar("T")

# nvmlMemoryErrorType_t, nvmlEccCounterType_t, nvmlClockType_t of nvml.h.
_UNCORRECTED = 1
_VOLATILE, _AGGREGATE = 0, 1
SM_CLOCK, MEMORY_CLOCK = 1, 2

# nvmlPageRetirementCause_t: after several single-bit errors, after a double-bit one.
_RETIREMENT_CAUSES = (0, 1)

# nvmlComputeMode_t; 1 was removed from the driver.
_COMPUTE_MODES = {0: "default", 2: "prohibited", 3: "exclusive process"}

# nvmlClocksEventReasons of nvml.h; 0x200 and 0x400 only in older drivers.
_HELD_BY = {
    0x001: "idle",
    0x002: "application clocks",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "thermal (software)",
    0x040: "thermal (hardware)",
    0x080: "power brake",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "reliability",
}


@dataclass(frozen=True)
class GpuState:
    """State of one device: the fields of `Gpu` that `gpu_state` reads."""

    licence: Licence | Unknown
    ecc: Ecc | Unknown
    clocks: Clocks | Unknown
    pcie_link: PcieLink | Unknown
    persistence_mode: bool | Unknown
    compute_mode: str | Unknown


def gpu_state(nvml: Nvml, form: str | Unknown, gpu: Any) -> GpuState:
    """Return the state of a device of `form`, given the handle of its physical GPU."""
    return GpuState(
        licence=licence(nvml, form, gpu),
        ecc=_ecc(nvml, gpu),
        clocks=_clocks(nvml, gpu),
        pcie_link=PcieLink(
            generation=ask(nvml, gpu, "nvmlDeviceGetCurrPcieLinkGeneration"),
            generation_max=ask(nvml, gpu, "nvmlDeviceGetMaxPcieLinkGeneration"),
            width=ask(nvml, gpu, "nvmlDeviceGetCurrPcieLinkWidth"),
            width_max=ask(nvml, gpu, "nvmlDeviceGetMaxPcieLinkWidth"),
        ),
        persistence_mode=_known(ask(nvml, gpu, "nvmlDeviceGetPersistenceMode"), bool),
        compute_mode=_known(ask(nvml, gpu, "nvmlDeviceGetComputeMode"), _compute_mode),
    )


def unknown_state(why: Unknown) -> GpuState:
    """Return a state with the same unknown value in all fields."""
    return GpuState(why, why, why, why, why, why)


def _ecc(nvml: Nvml, gpu: Any) -> Ecc:
    modes = ask(nvml, gpu, "nvmlDeviceGetEccMode")
    rows = ask(nvml, gpu, "nvmlDeviceGetRemappedRows")
    return Ecc(
        enabled=_known(modes, lambda both: bool(both[0])),
        enabled_after_reboot=_known(modes, lambda both: bool(both[1])),
        volatile_uncorrected=_uncorrected(nvml, gpu, _VOLATILE),
        aggregate_uncorrected=_uncorrected(nvml, gpu, _AGGREGATE),
        remapped_rows_corrected=_known(rows, lambda four: int(four[0])),
        remapped_rows_uncorrected=_known(rows, lambda four: int(four[1])),
        remapping_pending=_known(rows, lambda four: bool(four[2])),
        remapping_failed=_known(rows, lambda four: bool(four[3])),
        retired_pages=_retired_pages(nvml, gpu),
    )


def _uncorrected(nvml: Nvml, gpu: Any, counter: int) -> int | Unknown:
    found: int | Unknown = ask(nvml, gpu, "nvmlDeviceGetTotalEccErrors", _UNCORRECTED, counter)
    return found


def _retired_pages(nvml: Nvml, gpu: Any) -> int | Unknown:
    found = [ask(nvml, gpu, "nvmlDeviceGetRetiredPages", cause) for cause in _RETIREMENT_CAUSES]
    refused = next((pages for pages in found if isinstance(pages, Unknown)), None)
    return sum(len(pages) for pages in found) if refused is None else refused


def _clocks(nvml: Nvml, gpu: Any) -> Clocks:
    return Clocks(
        sm_mhz=ask(nvml, gpu, "nvmlDeviceGetClockInfo", SM_CLOCK),
        sm_max_mhz=ask(nvml, gpu, "nvmlDeviceGetMaxClockInfo", SM_CLOCK),
        memory_mhz=ask(nvml, gpu, "nvmlDeviceGetClockInfo", MEMORY_CLOCK),
        memory_max_mhz=ask(nvml, gpu, "nvmlDeviceGetMaxClockInfo", MEMORY_CLOCK),
        held_by=held_by(nvml, gpu),
    )


def held_by(nvml: Nvml, gpu: Any) -> tuple[str, ...] | Unknown:
    """Return the reasons that currently reduce the clocks of a GPU."""
    return _known(_event_reasons(nvml, gpu), _names)


def _event_reasons(nvml: Nvml, gpu: Any) -> Any:
    found = ask(nvml, gpu, "nvmlDeviceGetCurrentClocksEventReasons")
    if not isinstance(found, Unknown):
        return found
    # Drivers before 535 only have the call under its older name.
    return ask(nvml, gpu, "nvmlDeviceGetCurrentClocksThrottleReasons")


def _names(mask: int) -> tuple[str, ...]:
    bits = (1 << place for place in range(mask.bit_length()))
    return tuple(_HELD_BY.get(bit, f"reason {bit:#x}") for bit in bits if mask & bit)


def _compute_mode(number: int) -> str | Unknown:
    return _COMPUTE_MODES.get(number, Unknown(f"the driver reports compute mode {number}"))


def _known(value: Any, build: Callable[[Any], T]) -> T | Unknown:
    return value if isinstance(value, Unknown) else build(value)
