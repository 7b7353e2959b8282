"""What tests of clusters share: quiet cells, and processes that end."""

import time

import psutil

from workbench.cluster import TextSink


def quiet(cluster, source, **options):
    """Run a cell whose output nobody sees."""
    return cluster.run(source, sink=TextSink(), **options)


def gone(pids, seconds=5.0):
    """Whether all processes end within some seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(psutil.pid_exists(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False
