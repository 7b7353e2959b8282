"""Call NVML, list its devices, and convert its errors to `Unknown` with a reason."""

from __future__ import annotations

import ctypes
import importlib
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from workbench.resources.unknown import Unknown, if_known

N = TypeVar("N", bound=str)

# Codes of nvmlReturn_t that this module refers to; the comments below have the other names.
_INVALID_ARGUMENT = 2
_NOT_SUPPORTED = 3
_NOT_FOUND = 6
_DRIVER_NOT_LOADED = 9
_LIBRARY_NOT_FOUND = 12
_FUNCTION_NOT_FOUND = 13
_REASONS = {
    _INVALID_ARGUMENT: "not reported by this driver for this device",
    _NOT_SUPPORTED: "not reported by the driver for this device",
    4: "needs root",  # NO_PERMISSION
    _NOT_FOUND: "not found by the driver",
    _DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
    _LIBRARY_NOT_FOUND: "the NVIDIA driver is not installed (no libnvidia-ml.so.1)",
    _FUNCTION_NOT_FOUND: "this driver is too old to report it",
    15: "the GPU is lost: it fell off the bus, the VM must be restarted",  # GPU_IS_LOST
    16: "the GPU needs a reset",  # RESET_REQUIRED
    # LIB_RM_VERSION_MISMATCH
    18: "the driver's library and kernel module differ in version: restart the VM",
    25: "this driver speaks another version of the call",  # ARGUMENT_VERSION_MISMATCH
}
_NO_DRIVER = {_DRIVER_NOT_LOADED, _LIBRARY_NOT_FOUND}
_MISSING_CALL = _REASONS[_FUNCTION_NOT_FOUND]
_UNSUPPORTED = {_REASONS[_INVALID_ARGUMENT], _REASONS[_NOT_SUPPORTED], _REASONS[_NOT_FOUND]}
# nvmlGpuVirtualizationMode_t. A hypervisor reports 3 or 4 for its physical GPUs.
_FORMS = {0: "whole", 1: "passthrough", 2: "vgpu", 3: "whole", 4: "whole"}
_MIG_ENABLED = 1
# nvmlValueType_t: the member of nvmlValue_t that holds the value.
_VALUE_MEMBERS = {
    0: "dVal",
    1: "uiVal",
    2: "ulVal",
    3: "ullVal",
    4: "sllVal",
    5: "siVal",
    6: "usVal",
}
_CLOCK_STEP_S = 0.05
"""A larger change between the wall clock and the monotonic clock means that one was set."""


class Library(Protocol):
    """The functions and the error class of ``pynvml`` that this package uses."""

    NVMLError: type[Exception]

    def __getattr__(self, name: str) -> Any: ...


class NvmlUnavailable(Exception):
    """NVML is not available.

    Attributes
    ----------
    absent
        True if there is no driver or package; False if NVML is installed but does not start.
    """

    def __init__(self, reason: str, *, absent: bool) -> None:
        super().__init__(reason)
        self.absent = absent


class Nvml:
    """NVML (by default ``pynvml``), initialized by the constructor and shut down by `close`.

    Raises
    ------
    NvmlUnavailable
        If the package or the driver is missing, or the driver does not start.
    """

    def __init__(self, library: Library | None = None) -> None:
        self._library = _import() if library is None else library
        try:
            self._library.nvmlInit()
        except self._library.NVMLError as error:
            absent = getattr(error, "value", None) in _NO_DRIVER
            raise NvmlUnavailable(self._explain(error), absent=absent) from error

    def query(self, call: str, *arguments: Any) -> Any:
        """Return the result of an NVML call, or `Unknown` if NVML raises an error.

        Bytes are decoded, and NVML's ``N/A`` becomes `Unknown`.
        """
        function = getattr(self._library, call, None)
        if function is None:
            return Unknown(f"the installed nvidia-ml-py has no {call}")
        try:
            value = function(*arguments)
        except self._library.NVMLError as error:
            return Unknown(self._explain(error))
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        return Unknown(_REASONS[_NOT_SUPPORTED]) if value in ("N/A", "[N/A]", "") else value

    def fill(self, call: str, handle: Any, structure: str) -> Any:
        """Return the structure that an NVML call fills, or `Unknown`.

        `structure` is the name of its class. Use this for calls of ``pynvml`` that write to a
        pointer instead of returning a value.
        """
        structure_class = getattr(self._library, structure, None)
        if structure_class is None:
            return Unknown(f"the installed nvidia-ml-py has no {structure}")
        filled = structure_class()
        result = self.query(call, handle, ctypes.pointer(filled))
        return result if isinstance(result, Unknown) else filled

    def constant(self, name: str) -> int | None:
        """Return a constant of ``pynvml``; None if the installed version does not have it."""
        return getattr(self._library, name, None)

    @staticmethod
    def reason(code: int) -> str:
        """Return the text for an NVML error code (``nvmlReturn_t``)."""
        return _REASONS.get(code, f"NVML's error {code}")

    def close(self) -> None:
        """Shut NVML down; it stays initialized for other code in this process that uses NVML."""
        self.query("nvmlShutdown")

    def _explain(self, error: Exception) -> str:
        return _REASONS.get(getattr(error, "value", -1), f"NVML says: {error}")


def is_unsupported(value: Any) -> bool:
    """Return whether NVML reported that the device lacks a feature, which is not a fault."""
    return isinstance(value, Unknown) and value.reason in _UNSUPPORTED


def is_missing_call(value: Any) -> bool:
    """Return whether NVML reported that the driver does not have the call."""
    return isinstance(value, Unknown) and value.reason == _MISSING_CALL


def _import() -> Library:
    try:
        library: Any = importlib.import_module("pynvml")
    except ImportError as error:
        raise NvmlUnavailable(
            "the Python package nvidia-ml-py is not installed", absent=True
        ) from error
    return library  # type: ignore[no-any-return]  # the module implements the protocol


def devices(nvml: Nvml) -> Iterator[tuple[int, Any, str | Unknown, Any]]:
    """Yield all devices that can run work.

    Yields
    ------
    tuple
        NVML's index, the device's handle, its form, and the handle of its physical GPU
        (the same handle unless it is a MIG device).
    """
    count = nvml.query("nvmlDeviceGetCount")
    for index in range(0 if isinstance(count, Unknown) else count):
        handle = nvml.query("nvmlDeviceGetHandleByIndex", index)
        form = handle if isinstance(handle, Unknown) else _form(nvml, handle)
        mig_devices = [] if isinstance(form, Unknown) else _mig_devices(nvml, handle, form)
        for device in mig_devices:
            yield index, device, "mig", handle
        if not mig_devices:
            yield index, handle, form, handle


def query(nvml: Nvml, handle: Any, call: str, *arguments: Any) -> Any:
    """Call NVML for one device. If the handle is `Unknown`, return it instead."""
    return handle if isinstance(handle, Unknown) else nvml.query(call, handle, *arguments)


def read_memory(nvml: Nvml, handle: Any) -> Any:
    """Return a device's ``total`` and ``used`` bytes of memory, as ``nvidia-smi`` shows them.

    Version 2 of NVML's query reports the memory that driver and firmware reserve separately. A
    driver without version 2 counts the reserved memory as used.
    """
    if (version := nvml.constant("nvmlMemory_v2")) is not None:
        memory = query(nvml, handle, "nvmlDeviceGetMemoryInfo", version)
        if not isinstance(memory, Unknown):
            return memory
    return query(nvml, handle, "nvmlDeviceGetMemoryInfo")


def name_or_unknown(number: int | Unknown, names: Mapping[int, N], reason: str) -> N | Unknown:
    """Return the name of a number that NVML reported.

    For a number without a name, return an `Unknown` with `reason`, where ``{}`` is replaced by
    the number.

    Examples
    --------
    >>> name_or_unknown(1, {0: "off", 1: "on"}, "the driver reports mode {}")
    'on'
    >>> name_or_unknown(7, {0: "off", 1: "on"}, "the driver reports mode {}")
    Unknown(reason='the driver reports mode 7')
    """
    if isinstance(number, Unknown):
        return number
    return names.get(number, Unknown(reason.format(number)))


def mig_mode(nvml: Nvml, handle: Any) -> bool | Unknown:
    """Return whether a GPU is in MIG mode."""
    mode = query(nvml, handle, "nvmlDeviceGetMigMode")
    # NVML returns the current mode and the mode after a reset.
    return if_known(mode, lambda modes: bool(modes[0] == _MIG_ENABLED))


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
    mode = nvml.query("nvmlDeviceGetVirtualizationMode", handle)
    return name_or_unknown(mode, _FORMS, "the driver reports virtualization mode {}")


def _mig_devices(nvml: Nvml, handle: Any, form: str | Unknown) -> list[Any]:
    # A MIG-backed vGPU is a single device in its VM, whatever its MIG mode is.
    if form == "vgpu" or mig_mode(nvml, handle) is not True:
        return []
    max_devices = nvml.query("nvmlDeviceGetMaxMigDeviceCount", handle)
    slots = range(0 if isinstance(max_devices, Unknown) else max_devices)
    handles = (nvml.query("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot) for slot in slots)
    return [device for device in handles if not isinstance(device, Unknown)]


class FieldReading(NamedTuple):
    """The value of a field, and the time at which the driver read it (seconds since the epoch)."""

    value: float | Unknown
    time_s: float


def read_fields(
    nvml: Nvml, handle: Any, fields: Sequence[tuple[int, int]]
) -> list[FieldReading] | Unknown:
    """Read several fields of a device in one call.

    Parameters
    ----------
    fields
        The id of each field (``NVML_FI_DEV_``), and its scope, such as the number of a link.

    Returns
    -------
    list or Unknown
        A reading for each field, in order; `Unknown` if the driver rejects the call.
    """
    values = query(nvml, handle, "nvmlDeviceGetFieldValues", list(fields))
    if isinstance(values, Unknown):
        return values
    now = time.time()
    return [_reading(nvml, value, now) for value in values]


def first_reason(readings: Iterable[FieldReading]) -> Unknown:
    """Return the first `Unknown` among the values of readings."""
    reasons = (reading.value for reading in readings if isinstance(reading.value, Unknown))
    return next(reasons, Unknown("not reported by the driver for this device"))


def _reading(nvml: Nvml, value: Any, now: float) -> FieldReading:
    if value.nvmlReturn:
        return FieldReading(Unknown(nvml.reason(value.nvmlReturn)), now)
    member = _VALUE_MEMBERS.get(value.valueType)
    if member is None:
        return FieldReading(Unknown(f"the driver reports a value of type {value.valueType}"), now)
    # The timestamp is in microseconds; some drivers leave it at 0.
    return FieldReading(getattr(value.value, member), value.timestamp / 1e6 or now)


class WallClock:
    """Detects that the wall clock was set. Rates cannot be computed across that change.

    The driver's timestamps follow the wall clock.
    """

    def __init__(self) -> None:
        self._ahead_s: float | None = None

    def was_set(self) -> bool:
        """Return whether the clock was set since the last call."""
        ahead_s = time.time() - time.monotonic()
        previous_s = self._ahead_s
        self._ahead_s = ahead_s
        return previous_s is not None and abs(ahead_s - previous_s) > _CLOCK_STEP_S
