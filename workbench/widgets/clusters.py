"""A cluster's state as a table, for ``%cluster status``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.widgets.table import Table

if TYPE_CHECKING:
    from workbench.cluster import Cluster, RankInfo

_HEAD = ("rank", "VM", "GPU", "NUMA", "NIC", "PID", "state", "threads", "memory")


def to_html(cluster: Cluster) -> str:
    """Return a cluster as HTML."""
    return ClusterTable(cluster)._repr_html_()


def to_text(cluster: Cluster, printer: Any, cycle: bool) -> None:  # noqa: ARG001 - IPython's form
    """Print a cluster as text, as IPython's pretty printer asks for it."""
    printer.text(repr(ClusterTable(cluster)))


class ClusterTable(Table):
    """A cluster as it was when the table was made.

    Parameters
    ----------
    cluster
        What to show.
    """

    def __init__(self, cluster: Cluster) -> None:
        memory = cluster.memory_bytes()
        plural = "s" if cluster.n > 1 else ""
        title = f"{cluster.name}: {cluster.n} rank{plural}, {cluster.state}"
        if cluster.message:
            title += f" ({cluster.message})"
        running = [] if cluster.state == "stopped" else cluster.ranks
        notes = [] if running else ["Start one with %cluster start."]
        rows = [_row(info, memory.get(info.rank)) for info in running]
        super().__init__(title, _HEAD, rows, notes if cluster.state == "stopped" else ())


def _row(info: RankInfo, memory: int | None) -> tuple[str, ...]:
    size = "\u2013 (no process)" if memory is None else f"{memory / 2**20:,.0f} MiB"
    who = (info.rank, info.vm, info.gpu, info.numa, info.nic, info.pid, info.state, info.threads)
    return (*(str(value) for value in who), size)
