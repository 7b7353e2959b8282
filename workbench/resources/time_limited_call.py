"""Calls with a time limit, so that a driver that hangs only affects its own values."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from workbench.resources.unknown import Unknown

T = TypeVar("T")

_log = logging.getLogger(__name__)

TIMED_OUT = "did not answer within"
"""Words in the reason of a value if the call for it exceeded the time limit."""
STILL_BLOCKED = "has not returned from an earlier call"
"""Words in the reason of a value if an earlier call still hangs."""


class TimeLimitedCall:
    """Runs one call at a time, and stops waiting for it after a time limit.

    A call that hangs keeps its thread, since a thread cannot be stopped. Later calls
    return `Unknown` at once until it returns, so that no further threads are blocked.

    Parameters
    ----------
    name
        Name of the library or device that is called, for messages: ``"NVML"``.

    Examples
    --------
    >>> call = TimeLimitedCall("the driver")
    >>> call.run(lambda: 6 * 7, limit_s=10)
    42
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._stuck: threading.Thread | None = None

    def run(self, function: Callable[[], T], limit_s: float) -> T | Unknown:
        """Call `function` and wait for its result for at most `limit_s` seconds.

        An exception of the function is raised here. Calls from several threads
        run one at a time.
        """
        with self._lock:
            if self._stuck is not None and self._stuck.is_alive():
                return Unknown(f"{self._name} {STILL_BLOCKED}")
            call: Future[T] = Future()
            # A daemon thread: a call that never returns must not keep the process alive.
            thread = threading.Thread(
                target=_complete, args=(call, function), name=f"workbench-{self._name}", daemon=True
            )
            thread.start()
            thread.join(limit_s)
            if thread.is_alive():
                self._stuck = thread
                _log.info(
                    "%s did not answer within %g s; its thread keeps waiting", self._name, limit_s
                )
                return Unknown(f"{self._name} {TIMED_OUT} {limit_s:g} s")
            return call.result()


def _complete(call: Future[T], function: Callable[[], T]) -> None:
    try:
        call.set_result(function())
    except BaseException as error:  # noqa: BLE001  # raised again in the caller's thread
        call.set_exception(error)
