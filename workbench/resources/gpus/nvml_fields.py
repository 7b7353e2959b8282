"""Read NVML's field values: counters with a timestamp."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from workbench.resources.gpus.nvml import Nvml
from workbench.resources.gpus.nvml_devices import ask
from workbench.resources.unknown import Unknown

# nvmlValueType_t: the member of nvmlValue_t that holds the value.
_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
_STEP_S = 0.05


class Reading(NamedTuple):
    """Value of a field, and when the driver read it, in seconds since the epoch."""

    value: float | Unknown
    time_s: float


def read_fields(
    nvml: Nvml, handle: Any, wanted: Sequence[tuple[int, int]]
) -> list[Reading] | Unknown:
    """Read several fields of a device in one call.

    Parameters
    ----------
    wanted
        Id of each field (``NVML_FI_DEV_``) and its scope, such as the number of a link.

    Returns
    -------
    list or Unknown
        A reading for each field, in order; `Unknown` if the driver rejects the call.
    """
    values = ask(nvml, handle, "nvmlDeviceGetFieldValues", list(wanted))
    if isinstance(values, Unknown):
        return values
    now = time.time()
    return [_reading(nvml, value, now) for value in values]


def refusal(readings: Iterable[Reading]) -> Unknown:
    """Return the first reason why fields could not be read."""
    reasons = (each.value for each in readings if isinstance(each.value, Unknown))
    return next(reasons, Unknown("not reported by the driver for this device"))


def _reading(nvml: Nvml, value: Any, now: float) -> Reading:
    if value.nvmlReturn:
        return Reading(Unknown(nvml.reason(value.nvmlReturn)), now)
    member = _MEMBERS.get(value.valueType)
    if member is None:
        return Reading(Unknown(f"the driver reports a value of type {value.valueType}"), now)
    # some drivers leave the time out
    return Reading(getattr(value.value, member), value.timestamp / 1e6 or now)


class WallClock:
    """Detects that the clock was set, which makes the driver's timestamps unusable."""

    def __init__(self) -> None:
        self._ahead_s: float | None = None

    def was_set(self) -> bool:
        """Return whether the clock was set since the last call."""
        ahead_s = time.time() - time.monotonic()
        last, self._ahead_s = self._ahead_s, ahead_s
        return last is not None and abs(ahead_s - last) > _STEP_S
