"""How iterations and exposed communication vary, by rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.timings.derive import columns
from workbench.timings.export.walk import chosen
from workbench.timings.store import warm
from workbench.timings.summary import warm_note
from workbench.widgets.figure_style import dress
from workbench.widgets.phases import BACKWARD, EXPOSED

if TYPE_CHECKING:
    from workbench.timings.export.door import Exports

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_SHOWN = (
    ("iteration_us", "iteration time (ms)", BACKWARD),
    ("exposed_us", "exposed communication (ms)", EXPOSED),
)
_RANK_PX, _LEAST_PX = 30, 210


def ranks_figure(timings: Exports) -> Any:
    """Draw the distribution of iteration time and of exposed time, a box per rank.

    A box spans the middle half of the iterations, its line is the median, and
    its whiskers reach the 5th and 95th percentile. A cell's first iteration
    warms up, and is left out where there are others.

    Parameters
    ----------
    timings
        Of a cluster, or of an earlier run.

    Returns
    -------
    plotly.graph_objects.Figure
        Times in milliseconds.

    Raises
    ------
    UsageError
        There is no iteration.
    """
    from plotly.subplots import make_subplots

    from workbench.widgets.study_figure import study_figure

    every = chosen(timings, None)
    rows = warm(every)
    ranks = np.unique(rows["rank"]).tolist()
    table = columns(rows)
    places = timings.places()
    names = [f"rank {rank}{_on(places.get(rank))}" for rank in ranks]
    figure = study_figure("Iteration time and exposed communication, by rank")
    make_subplots(rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.06, figure=figure)
    for column, (name, title, phase) in enumerate(_SHOWN, start=1):
        parts = [table[name][rows["rank"] == rank] / 1e3 for rank in ranks]
        figure.add_trace(_boxes(names, parts, phase), row=1, col=column)
        figure.update_xaxes(title_text=title, rangemode="tozero", row=1, col=column)
    count = len(np.unique(rows["iteration"]))
    note = f"{count:,} iterations; box: middle half and median; whiskers: 5th to 95th percentile."
    left_out = warm_note(len(np.unique(every["iteration"])) - count)
    notes = tuple(filter(None, (note, left_out)))
    dress(figure, height=_LEAST_PX + _RANK_PX * len(ranks), notes=notes)
    figure.update_layout(showlegend=False, margin_t=20)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return figure


def _boxes(names: list[str], parts: list[Any], phase: Any) -> Any:
    """Return boxes from quantiles: their size does not grow with the run."""
    import plotly.graph_objects as go

    low, first, median, third, high = np.array([np.quantile(part, _QUANTILES) for part in parts]).T
    return go.Box(
        y=names, orientation="h", name="",
        lowerfence=low, q1=first, median=median, q3=third, upperfence=high,
        fillcolor=_pale(phase.color), line={"color": phase.color, "width": 2},
    )  # fmt: skip


def _pale(color: str) -> str:
    channels = ", ".join(str(int(color[at : at + 2], 16)) for at in (1, 3, 5))
    return f"rgba({channels}, 0.4)"


def _on(vm: str | None) -> str:
    return f" · {vm}" if vm else ""
