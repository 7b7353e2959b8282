"""Reports why Gloo ends this process: tensors of a collective differ between ranks.

If a peer sends more bytes than this rank expects, a thread of Gloo raises a C++ exception that no
code catches. Later output of the process is lost unless it goes to the log.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os

from workbench.rank.backends import flight_recorder

_LIBRARY = "libstdc++.so.6"
_SET_HANDLER = "_ZSt13set_terminatePFvvE"
_HANDLER = ctypes.CFUNCTYPE(None)
_NAME_OFFSET = ctypes.sizeof(ctypes.c_void_p)
"""Offset of the address of the name in a ``std::type_info``."""
_ENFORCE = b"gloo13EnforceNotMet"
"""Part of the mangled name of Gloo's exception."""
_MIN_SAVED_DESCRIPTOR = 10
"""Minimum number of the saved log descriptor; cells may close descriptors with small numbers."""

_referenced_by_cpp: list[object] = []
"""Objects that C++ refers to, so Python must not free them."""


def install() -> None:
    """Handle uncaught exceptions in C++; called outside of cells."""
    try:
        library = ctypes.CDLL(_LIBRARY)
        set_handler = library[_SET_HANDLER]
        exception_type = library.__cxa_current_exception_type
    except (OSError, AttributeError):  # another C++ library
        return
    if _referenced_by_cpp:
        return
    set_handler.restype = exception_type.restype = ctypes.c_void_p
    log = fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, _MIN_SAVED_DESCRIPTOR)
    previous: list[int] = []

    def terminate() -> None:
        with contextlib.suppress(OSError):
            os.dup2(log, 2)  # output elsewhere would be lost, as the process ends now
        if _ENFORCE in _name_of(exception_type()):
            os.write(2, f"\n{_explanation()}\n".encode())
            os.abort()
        if previous:
            _HANDLER(previous[0])()
        os.abort()

    handler = _HANDLER(terminate)
    _referenced_by_cpp.append(handler)
    previous.append(set_handler(handler))


def _name_of(type_info: int | None) -> bytes:
    """Return the mangled name in the ``std::type_info`` at an address; empty without an address."""
    if not type_info:
        return b""
    name = ctypes.c_char_p.from_address(type_info + _NAME_OFFSET).value
    return name or b""


def _explanation() -> str:
    pending = flight_recorder.unfinished(gpu=False)
    where = f"in {pending[0].name!r} with {pending[0].tensors}" if pending else "in a collective"
    return (
        f"{where} it received more bytes from another rank than its own tensor has: give all ranks "
        "of a collective tensors of the same shape and dtype"
    )
