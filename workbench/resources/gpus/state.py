"""What state a GPU is in: ECC, clocks, its PCIe link and its modes, by NVML.

All of it belongs to the whole GPU: a MIG device answers with those of the GPU
that it is cut from.
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

# nvmlComputeMode_t; 1 was taken out of the driver.
_COMPUTE_MODES = {0: "default", 2: "prohibited", 3: "exclusive process"}

# nvmlClocksEventReasons of nvml.h; 0x200 and 0x400 from the drivers that still name them.
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
    """The state of one device, to be made part of its `Gpu`."""

    licence: Licence | Unknown
    ecc: Ecc | Unknown
    clocks: Clocks | Unknown
    pcie_link: PcieLink | Unknown
    persistence_mode: bool | Unknown
    compute_mode: str | Unknown


def gpu_state(nvml: Nvml, form: str | Unknown, whole: Any) -> GpuState:
    """Ask for the state of a device of `form` that is, or is cut from, the GPU `whole`."""
    return GpuState(
        licence=licence(nvml, form, whole),
        ecc=_ecc(nvml, whole),
        clocks=_clocks(nvml, whole),
        pcie_link=PcieLink(
            generation=ask(nvml, whole, "nvmlDeviceGetCurrPcieLinkGeneration"),
            generation_max=ask(nvml, whole, "nvmlDeviceGetMaxPcieLinkGeneration"),
            width=ask(nvml, whole, "nvmlDeviceGetCurrPcieLinkWidth"),
            width_max=ask(nvml, whole, "nvmlDeviceGetMaxPcieLinkWidth"),
        ),
        persistence_mode=_known(ask(nvml, whole, "nvmlDeviceGetPersistenceMode"), bool),
        compute_mode=_known(ask(nvml, whole, "nvmlDeviceGetComputeMode"), _compute_mode),
    )


def unknown_state(why: Unknown) -> GpuState:
    """Give a state of which nothing could be read."""
    return GpuState(why, why, why, why, why, why)


def _ecc(nvml: Nvml, whole: Any) -> Ecc:
    modes = ask(nvml, whole, "nvmlDeviceGetEccMode")
    rows = ask(nvml, whole, "nvmlDeviceGetRemappedRows")
    return Ecc(
        enabled=_known(modes, lambda both: bool(both[0])),
        enabled_after_reboot=_known(modes, lambda both: bool(both[1])),
        volatile_uncorrected=_uncorrected(nvml, whole, _VOLATILE),
        aggregate_uncorrected=_uncorrected(nvml, whole, _AGGREGATE),
        remapped_rows_corrected=_known(rows, lambda four: int(four[0])),
        remapped_rows_uncorrected=_known(rows, lambda four: int(four[1])),
        remapping_pending=_known(rows, lambda four: bool(four[2])),
        remapping_failed=_known(rows, lambda four: bool(four[3])),
        retired_pages=_retired_pages(nvml, whole),
    )


def _uncorrected(nvml: Nvml, whole: Any, counter: int) -> int | Unknown:
    found: int | Unknown = ask(nvml, whole, "nvmlDeviceGetTotalEccErrors", _UNCORRECTED, counter)
    return found


def _retired_pages(nvml: Nvml, whole: Any) -> int | Unknown:
    found = [ask(nvml, whole, "nvmlDeviceGetRetiredPages", cause) for cause in _RETIREMENT_CAUSES]
    refused = next((pages for pages in found if isinstance(pages, Unknown)), None)
    return sum(len(pages) for pages in found) if refused is None else refused


def _clocks(nvml: Nvml, whole: Any) -> Clocks:
    return Clocks(
        sm_mhz=ask(nvml, whole, "nvmlDeviceGetClockInfo", SM_CLOCK),
        sm_max_mhz=ask(nvml, whole, "nvmlDeviceGetMaxClockInfo", SM_CLOCK),
        memory_mhz=ask(nvml, whole, "nvmlDeviceGetClockInfo", MEMORY_CLOCK),
        memory_max_mhz=ask(nvml, whole, "nvmlDeviceGetMaxClockInfo", MEMORY_CLOCK),
        held_by=held_by(nvml, whole),
    )


def held_by(nvml: Nvml, whole: Any) -> tuple[str, ...] | Unknown:
    """Ask what holds the clocks of a GPU down now, in words."""
    return _known(_event_reasons(nvml, whole), _names)


def _event_reasons(nvml: Nvml, whole: Any) -> Any:
    found = ask(nvml, whole, "nvmlDeviceGetCurrentClocksEventReasons")
    if not isinstance(found, Unknown):
        return found
    # Drivers before 535 know the call by its older name only.
    return ask(nvml, whole, "nvmlDeviceGetCurrentClocksThrottleReasons")


def _names(mask: int) -> tuple[str, ...]:
    bits = (1 << place for place in range(mask.bit_length()))
    return tuple(_HELD_BY.get(bit, f"reason {bit:#x}") for bit in bits if mask & bit)


def _compute_mode(number: int) -> str | Unknown:
    return _COMPUTE_MODES.get(number, Unknown(f"the driver reports compute mode {number}"))


def _known(value: Any, build: Callable[[Any], T]) -> T | Unknown:
    return value if isinstance(value, Unknown) else build(value)
