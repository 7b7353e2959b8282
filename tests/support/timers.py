"""Waiting for something in a test, and doing something meanwhile."""

import os
import threading
import time
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial

LIMITS_FACTOR = float(os.environ.get("TEST_LIMITS_FACTOR", "1"))
"""Multiplies all time limits of the tests, for slow machines; `.ci` multiplies its own likewise."""

FAR_S = 45.0 * LIMITS_FACTOR
"""When a test stops waiting for an event that has to come: before the test's own time limit."""

PROCESS_S = 80.0 * LIMITS_FACTOR
"""The limit of a process that does the work of a complete test, such as a kernel with a cluster."""

BUILD_S = 280.0 * LIMITS_FACTOR
"""The limit of a build, in a test that is marked with a longer time limit."""


def within(seconds, reached):
    """Ask until the answer is true, for some seconds at most, and return it."""
    deadline = time.monotonic() + seconds
    while not (answer := reached()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return answer


def eventually(reached):
    """Ask until the answer is true, and return it; a test says so where it never is."""
    return within(FAR_S, reached)


class InThread:
    """A call in a daemon thread, the only way in which tests start threads.

    Neither a process of pytest at its end nor a test waits for it longer than `FAR_S`.

    Parameters
    ----------
    function
        What is called, with the further arguments.

    Examples
    --------
    >>> InThread(max, 1, 2).join()
    2
    """

    def __init__(self, function, *arguments, **options):
        self._future = Future()
        self._call = partial(function, *arguments, **options)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def join(self, seconds=FAR_S):
        """Wait until the call has ended; return its value, or raise its exception."""
        value = self._future.result(seconds)
        self.thread.join(FAR_S)
        return value

    def is_alive(self):
        """Return whether the thread still runs."""
        return self.thread.is_alive()

    def _run(self):
        try:
            self._future.set_result(self._call())
        except BaseException as error:  # noqa: BLE001 - raised by `join` instead
            self._future.set_exception(error)


def when(reached, action):
    """Call `action` in a thread as soon as `reached` returns a true value; return the thread."""

    def follow():
        if eventually(reached):
            action()

    return InThread(follow)


@contextmanager
def later(seconds, action):
    """Call `action` in a thread some seconds after the body began, unless it has ended."""
    ended = threading.Event()

    def wait():
        if not ended.wait(seconds):
            action()

    thread = InThread(wait)
    try:
        yield thread
    finally:
        ended.set()
        thread.join()
