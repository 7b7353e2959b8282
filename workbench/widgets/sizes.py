"""The time of collectives by size, compared with the fabric's rates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import UsageError
from workbench.fabric import ring_us
from workbench.timings.frame import collectives
from workbench.widgets.phases import EXPOSED, FORWARD, OVERLAPPED

if TYPE_CHECKING:
    import pandas as pd

    from workbench.fabric import FittedFabric
    from workbench.timings.source import TimingsSource

_MAX_POINTS = 1000
"""Limit of the points, so that varying sizes do not fill the page."""
_LINE_POINTS = 60
_KEYS = ["name", "kind", "bytes"]
_BUFFER_NOTE = "A point is one fused buffer; queueing is not included."
_COLLECTIVE_NOTE = (
    "The shortest time over ranks, with queueing included because service times are unknown."
)
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "cross")


def sizes_figure(
    timings: TimingsSource, fabric: FittedFabric | None = None, nominal_gbps: float | None = None
) -> Any:
    """Draw the time of collectives by their size, with the lines of the fabric if known.

    A point is a buffer, the collectives that were sent together (`timings.frame.collectives`).
    It shows the bytes, and the service time, which excludes queueing. If no service time is known,
    a point is a collective. It shows the shortest time over ranks from submitted to finished,
    which excludes waiting for a late rank. Points are medians over iterations, and their error bars
    extend from the 10th to the 90th percentile.

    Parameters
    ----------
    fabric
        The measured fabric, ``cluster.fabric``, drawn as the line "calibrated".
    nominal_gbps
        The link's rate in gigabits per second; a ring at that rate is the line "nominal".

    Returns
    -------
    plotly.graph_objects.Figure
        Both axes are logarithmic: bytes and milliseconds.

    Raises
    ------
    UsageError
        No collective was recorded.
    """
    from workbench.widgets.plotly_figure import new_figure

    frame = collectives(timings.records())
    frame = frame[frame["bytes"] > 0]
    if frame.empty:
        raise UsageError(
            "Cannot draw collectives: none was recorded. First train on 2 ranks or more."
        )
    with_service = frame[frame["service_us"] > 0]
    by_buffer = not with_service.empty
    points = _quantiles(_buffers(with_service) if by_buffer else _collectives(frame))
    left_out = len(points) - _MAX_POINTS
    points = points.nlargest(_MAX_POINTS, "total_us")  # the points with the most time in total
    figure = new_figure("Time of collectives, by size")
    for index, (kind, kind_points) in enumerate(points.groupby("kind", sort=True)):
        figure.add_trace(_marks(str(kind), kind_points, _SYMBOLS[index % len(_SYMBOLS)]))
    for line in _lines(points, fabric, nominal_gbps, int(frame["ranks"].max())):
        figure.add_trace(line)
    _style(figure, left_out, by_buffer=by_buffer)
    return figure


def _style(figure: Any, left_out: int, *, by_buffer: bool) -> None:
    """Add axes and notes."""
    notes = [
        _BUFFER_NOTE if by_buffer else _COLLECTIVE_NOTE,
        "Median, and 10th to 90th percentile.",
    ]
    if left_out > 0:
        notes.append(f"{left_out:,} points with less total time are not shown.")
    figure.apply_style(height=440, notes=tuple(notes))
    time = "service time" if by_buffer else "submitted to finished"
    figure.update_xaxes(title_text="size (bytes)", type="log", tickformat="~s", dtick=1)
    figure.update_yaxes(title_text=f"{time} (ms)", type="log", tickformat="~g", dtick=1)


def _buffers(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row per iteration and buffer, taken from one rank, as all ranks agree."""
    one_rank = frame[frame["rank"] == frame["rank"].min()]
    grouped = one_rank.groupby(["cell", "iteration", "buffer"], sort=False)
    buffers: pd.DataFrame = grouped.agg(
        name=("name", "first"),
        kind=("kind", "first"),
        bytes=("bytes", "sum"),
        us=("service_us", "first"),
        count=("name", "size"),
    )
    is_fused = buffers["count"] > 1
    buffers.loc[is_fused, "name"] += " and " + (buffers["count"] - 1).astype(str) + " more"
    return buffers


def _collectives(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row per iteration and collective, with the shortest time over ranks."""
    keys = ["cell", "iteration", *_KEYS]
    shortest: pd.Series[float] = frame.groupby(keys, sort=False)["duration_us"].min()
    return shortest.rename("us").reset_index()


def _quantiles(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per name, kind and size: quantiles over iterations, and total time."""
    times = rows.groupby(_KEYS, sort=False)["us"]
    points = times.quantile(np.array([0.1, 0.5, 0.9])).unstack()
    points["total_us"] = times.sum()
    return points.reset_index()


def _lines(
    points: pd.DataFrame, fabric: FittedFabric | None, nominal_gbps: float | None, n: int
) -> Iterator[Any]:
    """Yield the calibrated and the nominal line, if known; `n` is the number of ranks."""
    sizes = np.geomspace(points["bytes"].min(), points["bytes"].max(), _LINE_POINTS).tolist()
    if fabric is not None and fabric.n > 1:
        times_us = [fabric.predict_us(size) for size in sizes]
        name = f"calibrated, \u00b1 {fabric.error * 100:.0f} %"
        name += "" if fabric.reliable else ": unreliable"
        yield line_trace(name, sizes, times_us, FORWARD, "solid")
    if nominal_gbps is not None and n > 1:
        name = f"nominal, ring of {n} at {nominal_gbps:g} Gbit/s"
        times_us = [ring_us(size, n, nominal_gbps) for size in sizes]
        yield line_trace(name, sizes, times_us, EXPOSED, "dash")


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


def line_trace(name: str, sizes: list[float], times_us: list[float], phase: Any, dash: str) -> Any:
    """Return a line of times in microseconds by size in bytes, drawn in milliseconds."""
    import plotly.graph_objects as go

    return go.Scatter(
        name=name, mode="lines", x=sizes, y=[us / 1e3 for us in times_us],
        line={"color": phase.color, "width": 2, "dash": dash},
        hovertemplate=name + "<br>%{x:,.0f} bytes: %{y:.3f} ms<extra></extra>",
    )  # fmt: skip
