"""Calls with a time limit, so that a driver that hangs only costs its own values."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from workbench.resources.unknown import Unknown

T = TypeVar("T")

NO_ANSWER = ("did not answer within", "has not returned from an earlier call")
"""Words in the reason of a value that a timed-out call should have returned."""


class _CallThread(Generic[T]):
    """One call in its own thread."""

    def __init__(self, name: str, function: Callable[[], T]) -> None:
        self._function = function
        self._result: T | None = None
        self._error: BaseException | None = None
        # A daemon thread: a call that never returns must not keep the process alive.
        self.thread = threading.Thread(target=self._run, name=f"workbench-{name}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:  # noqa: BLE001  # raised again in the caller's thread
            self._error = error

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # set unless there was an error


class TimeLimitedCall:
    """Runs one call at a time, and stops waiting for it after a time limit.

    A call that hangs keeps its thread, since a thread cannot be stopped. Later calls
    return `Unknown` at once while it hangs, so that no more threads pile up.

    Parameters
    ----------
    name
        What is called, for messages: ``"NVML"``.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._stuck: threading.Thread | None = None

    def run(self, function: Callable[[], T], limit_s: float) -> T | Unknown:
        """Call `function` and wait for its result for at most `limit_s` seconds.

        An exception of the function is raised here. Calls from several threads wait for
        each other.
        """
        with self._lock:
            if self._stuck is not None and self._stuck.is_alive():
                return Unknown(f"{self._name} {NO_ANSWER[1]}")
            call = _CallThread(self._name, function)
            call.thread.join(limit_s)
            if call.thread.is_alive():
                self._stuck = call.thread
                return Unknown(f"{self._name} {NO_ANSWER[0]} {limit_s:g} s")
            return call.result()
