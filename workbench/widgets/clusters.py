"""A cluster's state as a table, and the progress of its start."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from workbench.widgets.table import Table, show_as_table

if TYPE_CHECKING:
    from IPython.core.formatters import DisplayFormatter

    from workbench.cluster import Cluster, RankInfo

_HEAD = ("rank", "VM", "GPU", "NUMA", "NIC", "PID", "state", "threads", "memory", "transport")


def register(formatter: DisplayFormatter) -> None:
    """Register how notebooks show a cluster, without importing the class `Cluster`."""
    show_as_table(formatter, "workbench.cluster.cluster", "Cluster", cluster_table)


def cluster_table(cluster: Cluster) -> Table:
    """Return a cluster's current state: a row per rank."""
    memory = cluster.memory_bytes()
    plural = "s" if cluster.n > 1 else ""
    ranks = f"{cluster.n} rank{plural}, " if cluster.n else ""  # the number is 0 before the start
    title = f"{cluster.name}: {ranks}{cluster.state}"
    if cluster.message:
        title += f" ({cluster.message})"
    if cluster.state == "stopped":
        return Table(title, _HEAD, [], ["Start one with %cluster start.", *_warm_process()])
    rows = [_row(info, memory.get(info.rank)) for info in cluster.ranks]
    return Table(title, _HEAD, rows, [*cluster.description.splitlines(), *_warm_process()])


def _warm_process() -> list[str]:
    """Return a line about the kernel's warm process, if there is one."""
    from workbench.cluster import warm

    size = warm.memory_bytes()
    if size is None:
        return []
    memory = f"{size / 2**20:,.0f} MiB (PSS: its share of memory that ranks use too)"
    return [f"Warm process {warm.pid()} for the next start here: {memory}."]


def _row(info: RankInfo, memory: int | None) -> tuple[str, ...]:
    """Return the row of a rank; `memory` is in bytes, None for a rank without a process."""
    size = "\u2013 (no process)" if memory is None else f"{memory / 2**20:,.0f} MiB"
    fields = (info.rank, info.vm, info.gpu, info.numa, info.nic, info.pid, info.state, info.threads)
    return (*(str(value) for value in fields), size, info.transport or "\u2013 (not reported)")


@contextmanager
def start_progress() -> Iterator[None]:
    """Print the progress of the start on each VM."""
    from workbench.cluster import registry

    printed: list[str] = []

    def print_new_message() -> None:
        cluster = registry.current()
        if cluster is None or not cluster.options.remote or cluster.state != "starting":
            return
        if cluster.message not in printed:
            printed.append(cluster.message)
            sys.stdout.write(cluster.message + "\n")
            sys.stdout.flush()

    unsubscribe = registry.subscribe(print_new_message)
    try:
        yield
    finally:
        unsubscribe()
