"""Waiting for something in a test, and doing something meanwhile."""

import threading
import time
from contextlib import contextmanager


def within(seconds, reached):
    """Ask until the answer is true, for some seconds at most, and return it."""
    deadline = time.monotonic() + seconds
    while not (answer := reached()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return answer


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
