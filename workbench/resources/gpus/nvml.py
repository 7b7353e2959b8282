"""NVML behind one choke point: every refusal becomes `Unknown` with its reason."""

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
    """What this package needs of ``pynvml``: its error class, and its calls by name."""

    NVMLError: type[Exception]

    def __getattr__(self, name: str) -> Any: ...


class NvmlUnavailable(Exception):
    """NVML cannot be used at all.

    Attributes
    ----------
    absent
        True where there is simply no driver; False where something is wrong.
    """

    def __init__(self, reason: str, *, absent: bool) -> None:
        super().__init__(reason)
        self.absent = absent


class Nvml:
    """NVML, open from construction until `close`.

    Parameters
    ----------
    library
        ``pynvml``, or an object that behaves like it; None imports ``pynvml``.

    Raises
    ------
    NvmlUnavailable
        No package, no driver, or a driver that refuses to start.
    """

    def __init__(self, library: Library | None = None) -> None:
        self._library = _import() if library is None else library
        try:
            self._library.nvmlInit()
        except self._library.NVMLError as error:
            absent = getattr(error, "value", None) in _ABSENT
            raise NvmlUnavailable(self._explain(error), absent=absent) from error

    def ask(self, call: str, *arguments: Any) -> Any:
        """Give what the NVML call returns, or `Unknown` where NVML refuses.

        Bytes come back as text, and NVML's ``N/A`` as `Unknown`.
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
        """Give the structure of that name, filled by the call, or `Unknown`.

        For the calls of ``pynvml`` that return nothing and write where the
        caller points them to.
        """
        kind = getattr(self._library, structure, None)
        if kind is None:
            return Unknown(f"the installed nvidia-ml-py has no {structure}")
        filled = kind()
        answer = self.ask(call, handle, ctypes.pointer(filled))
        return answer if isinstance(answer, Unknown) else filled

    @staticmethod
    def reason(code: int) -> str:
        """Give an NVML error's code (``nvmlReturn_t``) in words."""
        return _REASONS.get(code, f"NVML's error {code}")

    def close(self) -> None:
        """Let NVML go; what other users in this process hold stays open."""
        self.ask("nvmlShutdown")

    def _explain(self, error: Exception) -> str:
        return _REASONS.get(getattr(error, "value", -1), f"NVML says: {error}")


def not_there(value: Any) -> bool:
    """Tell whether NVML refused because the device has no such thing, not by a fault."""
    return isinstance(value, Unknown) and value.reason in _NOT_THERE


def too_old(value: Any) -> bool:
    """Tell whether NVML refused because the driver does not know the call at all."""
    return isinstance(value, Unknown) and value.reason == _TOO_OLD


def _import() -> Library:
    try:
        library: Any = importlib.import_module("pynvml")
    except ImportError as error:
        raise NvmlUnavailable(
            "the Python package nvidia-ml-py is not installed", absent=True
        ) from error
    return library  # type: ignore[no-any-return]  # a module that fits the protocol
