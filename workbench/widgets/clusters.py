"""A cluster's state as a table, for ``%cluster status``."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.cluster import Cluster, RankInfo

_HEAD = ("rank", "VM", "GPU", "NUMA", "NIC", "PID", "state", "threads", "memory")
_STYLE = "font-variant-numeric:tabular-nums;border-collapse:collapse;font-size:12px"
_CELL = "padding:2px 10px 2px 0;text-align:left"


def to_html(cluster: Cluster) -> str:
    """Return a cluster as HTML."""
    return ClusterTable(cluster)._repr_html_()


def to_text(cluster: Cluster, printer: Any, cycle: bool) -> None:  # noqa: ARG001 - IPython's form
    """Print a cluster as text, as IPython's pretty printer asks for it."""
    printer.text(repr(ClusterTable(cluster)))


class ClusterTable:
    """A cluster as it was when the table was made.

    Parameters
    ----------
    cluster
        What to show.
    """

    def __init__(self, cluster: Cluster) -> None:
        memory = cluster.memory_bytes()
        plural = "s" if cluster.n > 1 else ""
        self._title = f"{cluster.name}: {cluster.n} rank{plural}, {cluster.state}"
        if cluster.message:
            self._title += f" ({cluster.message})"
        running = [] if cluster.state == "stopped" else cluster.ranks
        self._rows = [_row(info, memory.get(info.rank)) for info in running]

    def __repr__(self) -> str:
        if not self._rows:
            return self._title
        lines = [_HEAD, *self._rows]
        widths = [max(len(line[place]) for line in lines) for place in range(len(_HEAD))]
        table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        return "\n".join([self._title, *table])

    def _repr_html_(self) -> str:
        if not self._rows:
            return f"<div>{escape(self._title)}</div>"
        head = "".join(f'<th scope="col" style="{_CELL}">{name}</th>' for name in _HEAD)
        body = "".join(
            "<tr>" + "".join(f'<td style="{_CELL}">{escape(cell)}</td>' for cell in row) + "</tr>"
            for row in self._rows
        )
        return (
            f'<div>{escape(self._title)}</div><table style="{_STYLE}"><tr>{head}</tr>{body}</table>'
        )


def _row(info: RankInfo, memory: int | None) -> tuple[str, ...]:
    size = "\u2013 (no process)" if memory is None else f"{memory / 2**20:,.0f} MiB"
    who = (info.rank, info.vm, info.gpu, info.numa, info.nic, info.pid, info.state, info.threads)
    return (*(str(value) for value in who), size)
