"""What the magics show: each returns something that a notebook displays."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from workbench.widgets.cluster_source import ClusterSource
from workbench.widgets.live import LiveView
from workbench.widgets.source import Reading
from workbench.widgets.tables import summary_table
from workbench.widgets.text_table import summary_text

if TYPE_CHECKING:
    from workbench.advisor import Cause
    from workbench.cluster import Cluster

_TABLE_ROWS = 1 << 16
_live_views: WeakKeyDictionary[Cluster, LiveView] = WeakKeyDictionary()


def timings_view(cluster: Cluster, view: str) -> Any:
    """Return the cluster's timings as a ``"live"`` view, a ``"summary"``, or a ``"table"``."""
    if view == "table":
        return cluster.timings.to_frame()
    if view == "summary":
        return TimingsSummary(ClusterSource(cluster))
    # one view, and so one stream, a cluster; it may be shown in several cells
    return _live_views.setdefault(cluster, LiveView(ClusterSource(cluster)))


class TimingsSummary:
    """The key figures of a run as a table, as they were when it was made."""

    def __init__(self, source: ClusterSource) -> None:
        self._reading = Reading.take(source, _TABLE_ROWS)

    def __repr__(self) -> str:
        return summary_text(self._reading)

    def _repr_html_(self) -> str:
        return summary_table(self._reading) or f"<p>{escape(self._reading.status.message)}</p>"


class Causes:
    """What slows a training, as a table: evidence, cure, and predicted saving."""

    def __init__(self, causes: list[Cause]) -> None:
        self.causes = causes

    def __repr__(self) -> str:
        return "\n".join(
            f"{_saving(cause)}  {cause.name}: {cause.evidence}. {cause.cure}."
            for cause in self.causes
        )

    def _repr_html_(self) -> str:
        if not self.causes:
            return "<p>Nothing that can be seen here slows this training by 1 % or more.</p>"
        head = "".join(
            f'<th style="text-align:left">{name}</th>'
            for name in ("saving an iteration", "cause", "evidence", "cure")
        )
        rows = "".join(
            "<tr>"
            + "".join(
                f'<td style="text-align:left;vertical-align:top">{escape(text)}</td>'
                for text in (_saving(cause), cause.name, cause.evidence, cause.cure)
            )
            + "</tr>"
            for cause in self.causes
        )
        return f"<table><tr>{head}</tr>{rows}</table>"


def _saving(cause: Cause) -> str:
    if math.isnan(cause.saving_us):
        return "not known"
    least = "up to " if cause.bound else ""
    return f"{least}{cause.saving_us / 1e3:.2f} ms ({cause.saving_share:.0%})"
