"""Read the state of a GPU by NVML: licence, ECC, clocks, PCIe link and modes.

All fields but the licence belong to the physical GPU: a MIG device has the state of its GPU.
"""

from __future__ import annotations

from typing import Any

from workbench.resources.gpus.nvml import Nvml, name_or_unknown, query
from workbench.resources.gpus.records import Ecc, GpuClocks, Licence, PcieLink
from workbench.resources.unknown import Unknown, if_known

# The NVML_GRID_LICENSE_EXPIRY_ numbers of nvml.h; in pynvml they are tuples by mistake.
_LICENCE_VALID = 2
_LICENCE_PERMANENT = 4
_NO_EXPIRY_DATE = {
    0: "not reported by the driver",
    1: "the driver could not read it",
    3: "it has no date",
}

# nvmlMemoryErrorType_t, nvmlEccCounterType_t, nvmlClockType_t of nvml.h.
_ECC_ERRORS = "nvmlDeviceGetTotalEccErrors"
_UNCORRECTED = 1
_VOLATILE = 0
_AGGREGATE = 1
SM_CLOCK = 1
MEMORY_CLOCK = 2

# nvmlPageRetirementCause_t: after several single-bit errors, after a double-bit one.
_RETIREMENT_CAUSES = (0, 1)

# nvmlComputeMode_t; 1 was removed from the driver.
_COMPUTE_MODES = {0: "default", 2: "prohibited", 3: "exclusive process"}

# nvmlClocksEventReasons of nvml.h; only older drivers report 0x200 and 0x400.
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


def _licence(nvml: Nvml, form: str | Unknown, handle: Any) -> Licence | Unknown:
    """Return the licence of a vGPU; other GPUs do not need one."""
    if isinstance(form, Unknown):
        return form
    if form != "vgpu":
        return Unknown("not a vGPU: it needs no licence")
    answer = query(nvml, handle, "nvmlDeviceGetGridLicensableFeatures")
    if isinstance(answer, Unknown):
        return answer
    features = list(answer.gridLicensableFeatures)[: answer.licensableFeaturesCount]
    if not answer.isGridLicenseSupported or not features:
        return Unknown("the driver lists no feature that can be licensed")
    # The driver lists all features that can be licensed; prefer a feature that is in force.
    return _read_licence(
        min(features, key=lambda feature: (not feature.featureState, not feature.featureEnabled))
    )


def _read_licence(feature: Any) -> Licence:
    name = feature.productName
    product = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
    return Licence(
        state="licensed" if feature.featureState else "unlicensed",
        product=product or Unknown("not reported by the driver"),
        expires=_expires(feature.licenseExpiry),
    )


def _expires(date: Any) -> str | Unknown:
    if date.status == _LICENCE_PERMANENT:
        return "permanent"
    if date.status != _LICENCE_VALID:
        reason = _NO_EXPIRY_DATE.get(date.status, f"the driver reports expiry status {date.status}")
        return Unknown(reason)
    day = f"{date.year:04}-{date.month:02}-{date.day:02}"
    return f"{day} {date.hour:02}:{date.min:02}:{date.sec:02}"


def gpu_state(nvml: Nvml, form: str | Unknown, gpu: Any) -> dict[str, Any]:
    """Return the fields of a `Gpu` that describe its state, by its form and physical GPU."""
    return {
        "licence": _licence(nvml, form, gpu),
        "ecc": _ecc(nvml, gpu),
        "clocks": _clocks(nvml, gpu),
        "pcie_link": PcieLink(
            generation=query(nvml, gpu, "nvmlDeviceGetCurrPcieLinkGeneration"),
            generation_max=query(nvml, gpu, "nvmlDeviceGetMaxPcieLinkGeneration"),
            width=query(nvml, gpu, "nvmlDeviceGetCurrPcieLinkWidth"),
            width_max=query(nvml, gpu, "nvmlDeviceGetMaxPcieLinkWidth"),
        ),
        "persistence_mode": if_known(query(nvml, gpu, "nvmlDeviceGetPersistenceMode"), bool),
        "compute_mode": name_or_unknown(
            query(nvml, gpu, "nvmlDeviceGetComputeMode"),
            _COMPUTE_MODES,
            "the driver reports compute mode {}",
        ),
    }


def _ecc(nvml: Nvml, gpu: Any) -> Ecc:
    modes = query(nvml, gpu, "nvmlDeviceGetEccMode")
    rows = query(nvml, gpu, "nvmlDeviceGetRemappedRows")
    return Ecc(
        enabled=if_known(modes, lambda current_and_pending: bool(current_and_pending[0])),
        enabled_after_reboot=if_known(
            modes, lambda current_and_pending: bool(current_and_pending[1])
        ),
        volatile_uncorrected=query(nvml, gpu, _ECC_ERRORS, _UNCORRECTED, _VOLATILE),
        aggregate_uncorrected=query(nvml, gpu, _ECC_ERRORS, _UNCORRECTED, _AGGREGATE),
        remapped_rows_corrected=if_known(rows, lambda counts: int(counts[0])),
        remapped_rows_uncorrected=if_known(rows, lambda counts: int(counts[1])),
        remapping_pending=if_known(rows, lambda counts: bool(counts[2])),
        remapping_failed=if_known(rows, lambda counts: bool(counts[3])),
        retired_pages=_retired_pages(nvml, gpu),
    )


def _retired_pages(nvml: Nvml, gpu: Any) -> int | Unknown:
    pages = [query(nvml, gpu, "nvmlDeviceGetRetiredPages", cause) for cause in _RETIREMENT_CAUSES]
    unknown = next((listed for listed in pages if isinstance(listed, Unknown)), None)
    return sum(len(listed) for listed in pages) if unknown is None else unknown


def _clocks(nvml: Nvml, gpu: Any) -> GpuClocks:
    return GpuClocks(
        sm_mhz=query(nvml, gpu, "nvmlDeviceGetClockInfo", SM_CLOCK),
        sm_max_mhz=query(nvml, gpu, "nvmlDeviceGetMaxClockInfo", SM_CLOCK),
        memory_mhz=query(nvml, gpu, "nvmlDeviceGetClockInfo", MEMORY_CLOCK),
        memory_max_mhz=query(nvml, gpu, "nvmlDeviceGetMaxClockInfo", MEMORY_CLOCK),
        held_by=read_held_by(nvml, gpu),
    )


def read_held_by(nvml: Nvml, gpu: Any) -> tuple[str, ...] | Unknown:
    """Return the reasons that currently reduce the clocks of a GPU."""
    mask = query(nvml, gpu, "nvmlDeviceGetCurrentClocksEventReasons")
    if isinstance(mask, Unknown):  # drivers before 535 only have the older name of the call
        mask = query(nvml, gpu, "nvmlDeviceGetCurrentClocksThrottleReasons")
    return if_known(mask, _clock_reasons)


def _clock_reasons(mask: int) -> tuple[str, ...]:
    """Return the names of the bits that are set.

    Examples
    --------
    >>> _clock_reasons(0x44)
    ('power cap', 'thermal (hardware)')
    """
    bits = (1 << position for position in range(mask.bit_length()))
    return tuple(_HELD_BY.get(bit, f"reason {bit:#x}") for bit in bits if mask & bit)
