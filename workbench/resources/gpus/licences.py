"""Read the licence of a vGPU by NVML."""

from __future__ import annotations

from typing import Any

from workbench.resources.gpus.nvml import Nvml
from workbench.resources.gpus.nvml_devices import ask
from workbench.resources.gpus.records import Licence
from workbench.resources.unknown import Unknown

# The NVML_GRID_LICENSE_EXPIRY_ numbers of nvml.h; in pynvml they are tuples by mistake.
_VALID, _PERMANENT = 2, 4
_NO_DATE = {
    0: "not reported by the driver",
    1: "the driver could not read it",
    3: "it has no date",
}


def licence(nvml: Nvml, form: str | Unknown, handle: Any) -> Licence | Unknown:
    """Return the licence of a vGPU; other GPUs need none."""
    if isinstance(form, Unknown):
        return form
    if form != "vgpu":
        return Unknown("not a vGPU: it needs no licence")
    found = ask(nvml, handle, "nvmlDeviceGetGridLicensableFeatures")
    if isinstance(found, Unknown):
        return found
    features = list(found.gridLicensableFeatures)[: found.licensableFeaturesCount]
    if not found.isGridLicenseSupported or not features:
        return Unknown("the driver lists no feature that can be licensed")
    # The driver lists all features that can be licensed; prefer one that is in force.
    return _licence(min(features, key=lambda one: (not one.featureState, not one.featureEnabled)))


def _licence(feature: Any) -> Licence:
    name = feature.productName
    product = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
    return Licence(
        state="licensed" if feature.featureState else "unlicensed",
        product=product or Unknown("not reported by the driver"),
        expires=_expires(feature.licenseExpiry),
    )


def _expires(date: Any) -> str | Unknown:
    if date.status == _PERMANENT:
        return "permanent"
    if date.status != _VALID:
        reason = _NO_DATE.get(date.status, f"the driver reports expiry status {date.status}")
        return Unknown(reason)
    day = f"{date.year:04}-{date.month:02}-{date.day:02}"
    return f"{day} {date.hour:02}:{date.min:02}:{date.sec:02}"
