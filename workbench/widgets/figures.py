"""The mean iteration of each rank as a figure; `study` has those of ``%timings``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.errors import UsageError
from workbench.widgets.figure_style import dress
from workbench.widgets.phases import IN_TIME

if TYPE_CHECKING:
    import pandas as pd

_RANK_PX, _LEAST_PX = 34, 160


def iteration_figure(frame: pd.DataFrame) -> Any:
    """Stack the mean phases of an iteration, a bar per rank.

    Parameters
    ----------
    frame
        Rows of iterations and ranks, as ``cluster.timings.to_frame()`` gives
        them, times in microseconds.

    Returns
    -------
    plotly.graph_objects.Figure
        Times in milliseconds. What of `iteration_us` no phase covers is "other".

    Raises
    ------
    UsageError
        The frame has no row.
    """
    import plotly.graph_objects as go

    from workbench.widgets.study_figure import study_figure

    if frame.empty:
        raise UsageError("Cannot draw a figure: the timings have no iteration. Train first.")
    if "other_us" not in frame:
        known = [phase.column for phase in IN_TIME if phase.column in frame]
        frame = frame.assign(other_us=frame["iteration_us"] - frame[known].sum(axis=1))
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
    figure = study_figure("Mean iteration, by rank")
    figure.add_traces(bars)
    figure.update_layout(barmode="stack")
    dress(figure, height=_LEAST_PX + _RANK_PX * len(means))
    figure.update_xaxes(title_text="mean iteration (ms)")
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return figure
