"""Figures of the iterations by rank: distributions, and the mean iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import UsageError
from workbench.timings.derive import columns
from workbench.timings.export.iterations import select_rows
from workbench.timings.figures import typical
from workbench.timings.summary import left_out_notes
from workbench.widgets.phases import BACKWARD, EXPOSED, IN_TIME

if TYPE_CHECKING:
    import pandas as pd

    from workbench.timings.source import TimingsSource

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_COLUMNS = (
    ("iteration_us", "iteration time (ms)", BACKWARD),
    ("exposed_us", "exposed communication (ms)", EXPOSED),
)
_RANK_PX = 30
_MIN_PX = 210
_BAR_PX = 34
_MIN_BARS_PX = 160


def ranks_figure(timings: TimingsSource) -> Any:
    """Draw the distribution of iteration time and exposed time as one box per rank.

    A box spans the middle half of the iterations and its line is the median. Its
    whiskers extend to the 5th and 95th percentiles. The first iteration of each cell is
    a warm-up, and is left out unless there are no other iterations.

    Returns
    -------
    plotly.graph_objects.Figure
        Times in milliseconds.

    Raises
    ------
    UsageError
        No iteration was recorded.
    """
    from plotly.subplots import make_subplots

    from workbench.widgets.plotly_figure import new_figure

    all_rows = select_rows(timings, None)
    rows = typical(all_rows)
    ranks = np.unique(rows["rank"]).tolist()
    table = columns(rows)
    vms = timings.vm_names()
    names = [f"rank {rank}{_vm_suffix(vms.get(rank))}" for rank in ranks]
    figure = new_figure("Iteration time and exposed communication, by rank")
    make_subplots(rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.06, figure=figure)
    for column, (name, title, phase) in enumerate(_COLUMNS, start=1):
        rank_times_ms = [table[name][rows["rank"] == rank] / 1e3 for rank in ranks]
        figure.add_trace(_boxes(names, rank_times_ms, phase), row=1, col=column)
        figure.update_xaxes(title_text=title, rangemode="tozero", row=1, col=column)
    count = len(np.unique(rows["iteration"]))
    note = f"{count:,} iterations; box: middle half and median; whiskers: 5th to 95th percentile."
    notes = (note, *left_out_notes(all_rows))
    figure.apply_style(height=_MIN_PX + _RANK_PX * len(ranks), notes=notes)
    figure.update_layout(showlegend=False, margin_t=20)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return figure


def iteration_figure(frame: pd.DataFrame) -> Any:
    """Draw the mean phases of an iteration as a stacked bar per rank.

    Parameters
    ----------
    frame
        Rows of iterations and ranks, as returned by ``cluster.timings.to_frame()``;
        times in microseconds.

    Returns
    -------
    plotly.graph_objects.Figure
        Times in milliseconds. The time of `iteration_us` outside all phases is "other".

    Raises
    ------
    UsageError
        The frame is empty.
    """
    import plotly.graph_objects as go

    from workbench.widgets.plotly_figure import new_figure

    if frame.empty:
        raise UsageError("Cannot draw a figure: the timings have no iteration. Train first.")
    if "other_us" not in frame:
        phase_columns = [phase.column for phase in IN_TIME if phase.column in frame]
        frame = frame.assign(other_us=frame["iteration_us"] - frame[phase_columns].sum(axis=1))
    means = frame.groupby("rank").mean(numeric_only=True)
    bars = [
        go.Bar(
            name=phase.label,
            y=[f"rank {rank}" for rank in means.index],
            x=means[phase.column] / 1e3,
            orientation="h",
            marker={"color": phase.color, "line": {"color": phase.edge, "width": 1}},
            hovertemplate="%{y}: " + phase.label + " %{x:.2f} ms<extra></extra>",
        )
        for phase in IN_TIME
        if phase.column in means
    ]
    figure = new_figure("Mean iteration, by rank")
    figure.add_traces(bars)
    figure.update_layout(barmode="stack")
    figure.apply_style(height=_MIN_BARS_PX + _BAR_PX * len(means))
    figure.update_xaxes(title_text="mean iteration (ms)")
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return figure


def _boxes(names: list[str], rank_times_ms: list[Any], phase: Any) -> Any:
    """Return boxes from quantiles, so that the figure's size does not depend on the run."""
    import plotly.graph_objects as go

    quantiles = np.array([np.quantile(times_ms, _QUANTILES) for times_ms in rank_times_ms]).T
    low, quartile_1, median, quartile_3, high = quantiles
    return go.Box(
        y=names, orientation="h", name="",
        lowerfence=low, q1=quartile_1, median=median, q3=quartile_3, upperfence=high,
        fillcolor=_pale(phase.color), line={"color": phase.color, "width": 2},
    )  # fmt: skip


def _pale(color: str) -> str:
    """Return a colour with 40 % opacity, as CSS."""
    channels = ", ".join(str(int(color[start : start + 2], 16)) for start in (1, 3, 5))
    return f"rgba({channels}, 0.4)"


def _vm_suffix(vm: str | None) -> str:
    return f" · {vm}" if vm else ""
