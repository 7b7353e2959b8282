"""What tests of clusters share: quiet cells, and processes that end."""

import psutil
from timers import within

from workbench.cluster import TextSink


def quiet(cluster, source, **options):
    """Run a cell whose output nobody sees."""
    return cluster.run(source, sink=TextSink(), **options)


def gone(pids, seconds=5.0):
    """Whether all processes end within some seconds."""
    return within(seconds, lambda: not any(map(psutil.pid_exists, pids)))
