"""Kernels, started again if another process has taken a port that was chosen for them.

jupyter_client looks for free ports, and the kernel binds them a second later.
"""

from jupyter_client.manager import start_new_kernel

MAX_STARTS = 3


def started(start):
    """Return what `start`, which starts a kernel, returns; call it again if ports are taken."""
    for starts_left in reversed(range(MAX_STARTS)):
        try:
            return start()
        except RuntimeError as error:
            if not starts_left or "died before replying" not in str(error):
                raise
    raise AssertionError


def start_kernel(**options):
    """Start a kernel; return its manager and a client. `options` are those of a process."""
    return started(lambda: start_new_kernel(**options))
