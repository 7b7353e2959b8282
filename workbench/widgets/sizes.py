"""How long collectives of each size take, against what the fabric should give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import UsageError
from workbench.fabric import ring_us
from workbench.widgets.figure_style import dress
from workbench.widgets.phases import EXPOSED, FORWARD, OVERLAPPED

if TYPE_CHECKING:
    import pandas as pd

    from workbench.fabric import FittedFabric
    from workbench.timings.export.door import Exports

_MOST_POINTS = 1000
"""The dearest are drawn; beyond them, sizes that change every iteration fill the page."""
_LINE_POINTS = 60
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "cross")


def sizes_figure(
    timings: Exports, fabric: FittedFabric | None = None, nominal_gbps: float | None = None
) -> Any:
    """Draw each collective's time by its size, with the lines of the fabric where known.

    A point is the median over iterations of the least time over ranks, so
    that waiting for a late rank is not in it; its bar reaches from the 10th to
    the 90th percentile. From submitted to finished: queueing behind others is in it.

    Parameters
    ----------
    timings
        Of a cluster, or of an earlier run.
    fabric
        What was measured, ``cluster.fabric``: its line is "calibrated".
    nominal_gbps
        The link's rate in gigabits per second: a ring at that rate is "nominal".

    Returns
    -------
    plotly.graph_objects.Figure
        Both axes logarithmic: bytes, and milliseconds.

    Raises
    ------
    UsageError
        There is no collective.
    """
    import plotly.graph_objects as go

    frame = timings.collectives()
    frame = frame[frame["bytes"] > 0]
    if frame.empty:
        raise UsageError(
            "a figure of collectives was asked for, and none was recorded: train on 2 ranks or "
            "more, then ask again"
        )
    points = _points(frame)
    left_out = len(points) - _MOST_POINTS
    points = points.nlargest(_MOST_POINTS, "total_us")
    figure = go.Figure()
    for place, (kind, own) in enumerate(points.groupby("kind", sort=True)):
        figure.add_trace(_marks(str(kind), own, _SYMBOLS[place % len(_SYMBOLS)]))
    sizes = np.geomspace(points["bytes"].min(), points["bytes"].max(), _LINE_POINTS).tolist()
    n = int(frame["ranks"].max())
    if fabric is not None:
        figure.add_trace(
            _line(
                "calibrated", sizes, [fabric.predict_us(size) for size in sizes], FORWARD, "solid"
            )
        )
    if nominal_gbps is not None and n > 1:
        name = f"nominal, ring of {n} at {nominal_gbps:g} Gbit/s"
        figure.add_trace(
            _line(name, sizes, [ring_us(size, n, nominal_gbps) for size in sizes], EXPOSED, "dash")
        )
    notes = ["Median and 10th to 90th percentile of the least time over ranks, queueing included."]
    if left_out > 0:
        notes.append(f"{left_out:,} further collectives took less time in all, and are left out.")
    dress(figure, height=440, notes=tuple(notes))
    figure.update_xaxes(title_text="size (bytes)", type="log", tickformat="~s", dtick=1)
    figure.update_yaxes(
        title_text="submitted to finished (ms)", type="log", tickformat="~g", dtick=1
    )
    return figure


def _points(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row per collective: its quantiles in microseconds, and its time in all."""
    what = ["name", "kind", "bytes"]
    least = frame.groupby(["iteration", *what], sort=False)["duration_us"].min()
    by_name = least.groupby(level=what, sort=False)
    points = by_name.quantile(np.array([0.1, 0.5, 0.9])).unstack()
    points["total_us"] = by_name.sum()
    return points.reset_index()


def _marks(kind: str, points: pd.DataFrame, symbol: str) -> Any:
    import plotly.graph_objects as go

    low, middle, high = (points[q].to_numpy() / 1e3 for q in (0.1, 0.5, 0.9))
    return go.Scatter(
        name=kind, mode="markers", x=points["bytes"], y=middle, text=points["name"],
        error_y={
            "type": "data", "array": high - middle, "arrayminus": middle - low,
            "color": OVERLAPPED.color, "thickness": 1, "width": 2,
        },
        marker={
            "color": OVERLAPPED.color, "size": 8, "symbol": symbol,
            "line": {"color": OVERLAPPED.edge, "width": 1},
        },
        hovertemplate="%{text}<br>%{x:,} bytes<br>%{y:.3f} ms<extra></extra>",
    )  # fmt: skip


def _line(name: str, sizes: list[float], micros: list[float], phase: Any, dash: str) -> Any:
    import plotly.graph_objects as go

    return go.Scatter(
        name=name, mode="lines", x=sizes, y=[micro / 1e3 for micro in micros],
        line={"color": phase.color, "width": 2, "dash": dash},
        hovertemplate=name + "<br>%{x:,.0f} bytes: %{y:.3f} ms<extra></extra>",
    )  # fmt: skip
