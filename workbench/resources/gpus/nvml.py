"""Call NVML, and convert each of its errors to `Unknown` with a reason."""

from __future__ import annotations

import ctypes
import importlib
from typing import Any, Protocol

from workbench.resources.unknown import Unknown

_REASONS = {
    2: "not reported by this driver for this device",  # INVALID_ARGUMENT
    3: "not reported by the driver for this device",  # NOT_SUPPORTED
    4: "needs root",  # NO_PERMISSION
    6: "not found by the driver",  # NOT_FOUND
    9: "the NVIDIA driver is not loaded",  # DRIVER_NOT_LOADED
    12: "the NVIDIA driver is not installed (no libnvidia-ml.so.1)",  # LIBRARY_NOT_FOUND
    13: "this driver is too old to report it",  # FUNCTION_NOT_FOUND
    15: "the GPU is lost: it fell off the bus, the VM must be restarted",  # GPU_IS_LOST
    16: "the GPU needs a reset",  # RESET_REQUIRED
    18: "the driver's library and kernel module differ in version: restart the VM",
    25: "this driver speaks another version of the call",  # ARGUMENT_VERSION_MISMATCH
}
_ABSENT = {9, 12}
_TOO_OLD = _REASONS[13]
_NOT_THERE = {_REASONS[2], _REASONS[3], _REASONS[6]}


class Library(Protocol):
    """The part of ``pynvml`` that this package uses: its error class and its functions."""

    NVMLError: type[Exception]

    def __getattr__(self, name: str) -> Any: ...


class NvmlUnavailable(Exception):
    """NVML is not available.

    Attributes
    ----------
    absent
        True if there is no driver or package; False if something is wrong.
    """

    def __init__(self, reason: str, *, absent: bool) -> None:
        super().__init__(reason)
        self.absent = absent


class Nvml:
    """NVML, initialized by the constructor and shut down by `close`.

    Parameters
    ----------
    library
        ``pynvml`` or a compatible object; None imports ``pynvml``.

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
            absent = getattr(error, "value", None) in _ABSENT
            raise NvmlUnavailable(self._explain(error), absent=absent) from error

    def ask(self, call: str, *arguments: Any) -> Any:
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
        return Unknown(_REASONS[3]) if value in ("N/A", "[N/A]", "") else value

    def fill(self, call: str, handle: Any, structure: str) -> Any:
        """Return the named structure, filled by the call, or `Unknown`.

        Use it for calls of ``pynvml`` that write to a pointer instead of returning a value.
        """
        kind = getattr(self._library, structure, None)
        if kind is None:
            return Unknown(f"the installed nvidia-ml-py has no {structure}")
        filled = kind()
        answer = self.ask(call, handle, ctypes.pointer(filled))
        return answer if isinstance(answer, Unknown) else filled

    @staticmethod
    def reason(code: int) -> str:
        """Return the text for an NVML error code (``nvmlReturn_t``)."""
        return _REASONS.get(code, f"NVML's error {code}")

    def close(self) -> None:
        """Shut NVML down; it stays initialized for other users in this process."""
        self.ask("nvmlShutdown")

    def _explain(self, error: Exception) -> str:
        return _REASONS.get(getattr(error, "value", -1), f"NVML says: {error}")


def not_there(value: Any) -> bool:
    """Return whether NVML reported that the device lacks a feature, not a fault."""
    return isinstance(value, Unknown) and value.reason in _NOT_THERE


def too_old(value: Any) -> bool:
    """Return whether NVML reported that the driver does not have the call."""
    return isinstance(value, Unknown) and value.reason == _TOO_OLD


def _import() -> Library:
    try:
        library: Any = importlib.import_module("pynvml")
    except ImportError as error:
        raise NvmlUnavailable(
            "the Python package nvidia-ml-py is not installed", absent=True
        ) from error
    return library  # type: ignore[no-any-return]  # the module implements the protocol
