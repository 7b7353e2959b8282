"""The views that the magics return."""

from __future__ import annotations

import sys
import threading
from html import escape
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from workbench.errors import UsageError
from workbench.widgets.cluster_source import ClusterSource
from workbench.widgets.live import LiveView
from workbench.widgets.source import TimingsReading
from workbench.widgets.table import Table
from workbench.widgets.tables import summary_table, summary_text

if TYPE_CHECKING:
    from workbench.advisor import Cause
    from workbench.cluster import Cluster

_TABLE_ROWS = 1 << 16
_HEAD = ("saving per iteration", "cause", "evidence", "fix")
_NO_CAUSE = "Nothing visible here slows down this training by 1 % or more."
_live_views: WeakKeyDictionary[Cluster, LiveView] = WeakKeyDictionary()
_live_views_lock = threading.Lock()
"""A cell and a request of the panel may open views at the same time."""


def timings_view(cluster: Cluster, view: str) -> Any:
    """Return the cluster's timings as a ``"live"`` view, a ``"summary"``, or a ``"table"``."""
    if view == "table":
        print_unrecorded(cluster)
        return cluster.timings.to_frame()
    if view == "summary":
        return TimingsSummary(ClusterSource(cluster))
    with _live_views_lock:
        old_views = _remove_old_views(cluster)
        # One view, and so one stream, per cluster; several cells may show it.
        live_view = _live_views.setdefault(cluster, LiveView(ClusterSource(cluster)))
    for old_view in old_views:
        old_view.close()
    return live_view


def _remove_old_views(cluster: Cluster) -> list[LiveView]:
    """Remove and return the views of other, stopped clusters, because each view has a thread.

    The last view is kept, because a stopped cluster may be started again.
    """
    old_clusters = [other for other in _live_views if other is not cluster and other.timings.closed]
    return [_live_views.pop(other) for other in old_clusters]


class TimingsSummary:
    """The key figures of a run as a table, read when the object is created."""

    def __init__(self, source: ClusterSource) -> None:
        self._reading = TimingsReading.take(source, _TABLE_ROWS)

    def __repr__(self) -> str:
        return summary_text(self._reading)

    def _repr_html_(self) -> str:
        return summary_table(self._reading) or f"<p>{escape(self._reading.status.message)}</p>"


def explain_view(
    run: str | None, latest: int | None, *, all_cells: bool, sample: bool
) -> Causes | None:
    """Return what slows down the cluster's training or a recorded run; see ``%explain``."""
    from workbench.advisor import explain
    from workbench.cluster import registry
    from workbench.timings.run import open_run

    if sample and run is not None:
        raise UsageError(f"%explain {run} --sample: a recorded run cannot be sampled. Remove one.")
    training: Any = registry.required() if run is None else open_run(run)
    if sample and not training.sample_lines():
        sys.stdout.write("The next cell will be sampled. Run it, then %explain.\n")
        return None
    causes = explain(training, latest, all_cells=all_cells)
    timings = getattr(training, "timings", None)
    note = getattr(timings, "unrecorded", "")
    if latest is None and not all_cells:
        note = note or getattr(timings, "remark", "")
    return Causes(causes, note)


class Causes:
    """The causes that slow down a training, as a table: evidence, fix and predicted saving."""

    def __init__(self, causes: list[Cause], note: str = "") -> None:
        self.causes = causes
        self._notes = [note] if note else []

    def __repr__(self) -> str:
        savings = [cause.prediction for cause in self.causes]
        width = max(map(len, savings), default=0)
        lines = [
            f"{saving:>{width}}  {cause.name}: {cause.text}"
            for saving, cause in zip(savings, self.causes, strict=True)
        ]
        return "\n".join([*(lines or [_NO_CAUSE]), *self._notes])

    def _repr_html_(self) -> str:
        title = "What slows down this training:" if self.causes else _NO_CAUSE
        return Table(title, _HEAD, [*map(_cells, self.causes)], self._notes)._repr_html_()


def print_unrecorded(cluster: Cluster) -> None:
    """Print which cells are not recorded, for views that do not show these cells themselves."""
    if note := cluster.timings.unrecorded:
        sys.stdout.write(f"{note}\n")


def _cells(cause: Cause) -> tuple[str, ...]:
    """Return a cause as the cells of its row."""
    measure = f" To measure: {cause.measure}." if cause.measure else ""
    return (
        cause.prediction,
        cause.name,
        f"{cause.evidence}.{measure}" if measure else cause.evidence,
        cause.change,
    )
