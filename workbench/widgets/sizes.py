"""How long collectives of each size take, against what the fabric should give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import UsageError
from workbench.fabric import ring_us
from workbench.timings.frame import collectives
from workbench.widgets.figure_style import dress
from workbench.widgets.phases import EXPOSED, FORWARD, OVERLAPPED

if TYPE_CHECKING:
    import pandas as pd

    from workbench.fabric import FittedFabric
    from workbench.timings.export.door import Exports

_MOST_POINTS = 1000
"""The dearest are drawn; beyond them, sizes that change every iteration fill the page."""
_LINE_POINTS = 60
_WHAT = ["name", "kind", "bytes"]
_SERVED = "A point is what travelled in one buffer, as inferred; queueing is not included."
_WHOLE = "The least time over ranks; queueing is included, for service times are not known."
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "cross")


def sizes_figure(
    timings: Exports, fabric: FittedFabric | None = None, nominal_gbps: float | None = None
) -> Any:
    """Draw the time of collectives by their size, with the lines of the fabric where known.

    A point is a buffer, the collectives that travelled together as inferred
    (`timings.frame.collectives`): its bytes, and its service time, queueing not
    included. Where that could not be told for any, it is a collective: the
    least time over ranks from submitted to finished, so that waiting for a late
    rank is not in it. Points are medians over iterations; their bars reach from
    the 10th to the 90th percentile.

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
    from workbench.widgets.study_figure import study_figure

    frame = collectives(timings.records())
    frame = frame[frame["bytes"] > 0]
    if frame.empty:
        raise UsageError(
            "Cannot draw collectives: none was recorded. First train on 2 ranks or more."
        )
    served = frame[frame["service_us"] > 0]
    points = _spread(_collectives(frame) if served.empty else _buffers(served))
    left_out = len(points) - _MOST_POINTS
    points = points.nlargest(_MOST_POINTS, "total_us")
    figure = study_figure("Time of collectives, by size")
    for place, (kind, own) in enumerate(points.groupby("kind", sort=True)):
        figure.add_trace(_marks(str(kind), own, _SYMBOLS[place % len(_SYMBOLS)]))
    for line in _lines(points, fabric, nominal_gbps, int(frame["ranks"].max())):
        figure.add_trace(line)
    notes = [_WHOLE if served.empty else _SERVED, "Median, and 10th to 90th percentile."]
    if left_out > 0:
        notes.append(f"{left_out:,} further points took less time in all, and are left out.")
    dress(figure, height=440, notes=tuple(notes))
    what = "submitted to finished" if served.empty else "service time"
    figure.update_xaxes(title_text="size (bytes)", type="log", tickformat="~s", dtick=1)
    figure.update_yaxes(title_text=f"{what} (ms)", type="log", tickformat="~g", dtick=1)
    return figure


def _buffers(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row per iteration and buffer; all ranks say the same of one."""
    one = frame[frame["rank"] == frame["rank"].min()]
    grouped = one.groupby(["cell", "iteration", "buffer"], sort=False)
    buffers: pd.DataFrame = grouped.agg(
        name=("name", "first"),
        kind=("kind", "first"),
        bytes=("bytes", "sum"),
        us=("service_us", "first"),
        count=("name", "size"),
    )
    more = buffers["count"] > 1
    buffers.loc[more, "name"] += " and " + (buffers["count"] - 1).astype(str) + " more"
    return buffers


def _collectives(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row per iteration and collective, with the least of the ranks' times."""
    what = ["cell", "iteration", *_WHAT]
    least: pd.Series[float] = frame.groupby(what, sort=False)["duration_us"].min()
    return least.rename("us").reset_index()


def _spread(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per name, kind and size: quantiles over iterations, and time in all."""
    same = rows.groupby(_WHAT, sort=False)["us"]
    points = same.quantile(np.array([0.1, 0.5, 0.9])).unstack()
    points["total_us"] = same.sum()
    return points.reset_index()


def _lines(
    points: pd.DataFrame, fabric: FittedFabric | None, nominal_gbps: float | None, n: int
) -> Iterator[Any]:
    sizes = np.geomspace(points["bytes"].min(), points["bytes"].max(), _LINE_POINTS).tolist()
    if fabric is not None:
        micros = [fabric.predict_us(size) for size in sizes]
        name = f"calibrated, \u00b1 {fabric.error * 100:.0f} %"
        name += "" if fabric.reliable else ": unreliable"
        yield _line(name, sizes, micros, FORWARD, "solid")
    if nominal_gbps is not None and n > 1:
        name = f"nominal, ring of {n} at {nominal_gbps:g} Gbit/s"
        micros = [ring_us(size, n, nominal_gbps) for size in sizes]
        yield _line(name, sizes, micros, EXPOSED, "dash")


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
