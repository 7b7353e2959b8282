"""Waiting for something in a test, and doing something meanwhile."""

import os
import threading
import time
from contextlib import contextmanager

LIMITS_FACTOR = float(os.environ.get("TEST_LIMITS_FACTOR", "1"))
"""Multiplies all time limits of the tests, for slow machines; `.ci` multiplies its own likewise."""

FAR_S = 45.0 * LIMITS_FACTOR
"""When a test stops waiting for an event that has to come: before the test's own time limit."""

PROCESS_S = 80.0 * LIMITS_FACTOR
"""The limit of a process that does the work of a complete test, such as a kernel with a cluster."""

BUILD_S = 280.0 * LIMITS_FACTOR
"""The limit of a build, in a test that is marked with a longer time limit."""

SOON_S = 60.0
"""What ends before this has ended by itself: time limits in tests are longer, and what is measured
in seconds is in `tests/bench`."""


def within(seconds, reached):
    """Ask until the answer is true, for some seconds at most, and return it."""
    deadline = time.monotonic() + seconds
    while not (answer := reached()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return answer


def eventually(reached):
    """Ask until the answer is true, and return it; a test says so where it never is."""
    return within(FAR_S, reached)


def when(reached, action):
    """Do something in another thread as soon as something has come true; return the thread."""

    def follow():
        if eventually(reached):
            action()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    return thread


@contextmanager
def later(seconds, action):
    """Do something from another thread while the body runs."""
    timer = threading.Timer(seconds, action)
    timer.start()
    try:
        yield timer
    finally:
        timer.cancel()
        timer.join()
