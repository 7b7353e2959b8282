"""Keeps an exception in this package's bookkeeping from ending a training.

The exception is logged with its traceback, and this kind of recording stops until the next cell.
The user's function is called exactly once in any case, and its exceptions propagate.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import torch

from workbench.rank.recording.compiler import never_compile

Function = Callable[..., Any]
_log = logging.getLogger(__name__)
_NOT_CALLED, _RETURNED, _RAISED = range(3)


class _Calls(threading.local):
    """One thread's calls of guarded functions that have not returned.

    Each call is a list of the state of the original, and its result or exception.
    """

    def __init__(self) -> None:
        self.open: list[list[Any]] = []


_calls = _Calls()


class Guard:
    """Calls the bookkeeping of one kind of recording until it fails.

    Parameters
    ----------
    kind
        Name of the kind of recording, such as ``"training loop"``.
    failed
        Called with `kind` and the exception, in any thread, when the bookkeeping has failed.

    Attributes
    ----------
    broken
        Whether the bookkeeping has failed.
    """

    def __init__(self, kind: str, failed: Callable[[str, Exception], None]) -> None:
        self._kind = kind
        self._failed = failed
        self.broken = False

    def fail(self, error: Exception) -> None:
        """Log an exception of the bookkeeping and stop it; any thread may call this.

        A lack of memory or of stack frames is caused by the cell, and ends with it. Then nothing
        stops.
        """
        if self.broken or isinstance(error, (MemoryError, RecursionError)):
            return
        self.broken = True
        try:
            self._failed(self._kind, error)
            _log.error(
                "Recording of the %s has stopped on this rank, because it has failed. The cell "
                "trains as without it, and the next cell tries again.",
                self._kind,
                exc_info=error,
            )
        except Exception:  # noqa: BLE001, S110 - a handler of the user may raise anything
            pass

    def around(self, original: Function, make: Callable[[Function], Function]) -> Function:
        """Return a guarded version of the replacement that `make` returns for `original`.

        The replacement may fail before or after it has called `original`. Then the guarded function
        returns the result of `original`, and calls it first if the replacement has not.

        Examples
        --------
        >>> failures = []
        >>> guard = Guard("training loop", lambda kind, error: failures.append(kind))
        >>> guard.around(len, lambda original: lambda value: original(value))([1, 2])
        2
        """

        def called(*args: Any, **kwargs: Any) -> Any:
            call = _calls.open[-1]
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                call[:] = _RAISED, error
                raise
            call[:] = _RETURNED, result
            return result

        replacement = make(called)
        never_compile(called, calls=False)
        never_compile(replacement, calls=False)

        def guarded(*args: Any, **kwargs: Any) -> Any:
            if self.broken or torch.compiler.is_compiling():
                return original(*args, **kwargs)
            call: list[Any] = [_NOT_CALLED, None]
            open_calls = _calls.open
            open_calls.append(call)
            try:
                return replacement(*args, **kwargs)
            except Exception as error:
                if call[0] is _RAISED and call[1] is error:
                    raise
                self.fail(error)
            finally:
                open_calls.pop()
            if call[0] is _RETURNED:
                return call[1]
            if call[0] is _RAISED:
                raise call[1]
            return original(*args, **kwargs)

        return guarded

    def only(self, function: Function) -> Function:
        """Return a guarded version of a function that calls no code of the user."""

        def guarded(*args: Any, **kwargs: Any) -> Any:
            return self.call(function, *args, **kwargs)

        never_compile(guarded)
        return guarded

    def call(self, function: Function, *args: Any, **kwargs: Any) -> Any:
        """Call a function that calls no code of the user, and return the function's result.

        Return None if the bookkeeping fails now or has failed before.
        """
        if self.broken:
            return None
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - it must not end a training
            self.fail(error)
            return None
