"""Doing something while a test waits for something else."""

import threading
from contextlib import contextmanager


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
