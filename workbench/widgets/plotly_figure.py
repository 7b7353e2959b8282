"""Plotly figures of timings, which also have a static form for pages without scripts.

A figure cannot read the theme around it. So it has no background, and its grey text has the
same contrast with white as with JupyterLab's dark background.
"""

from __future__ import annotations

from typing import Any

import pandas as pd  # noqa: F401 - plotly would use pandas while another thread loads it
import plotly.graph_objects as go

from workbench.widgets.static_figure import INK, static_html
from workbench.widgets.table import Table

_GRID = "rgba(127, 127, 127, 0.28)"
_CLEAR = "rgba(0, 0, 0, 0)"
_NOTE_PX = 18
"""Height of one line of notes below a figure."""
_BELOW_AXIS_PX = 48
"""Distance from the axis to the notes; the tick labels and the axis title are in between."""


class TimingsFigure(go.Figure):
    """A plotly figure with a static picture and a table of values in its MIME bundle.

    `_title` describes the figure in plain text. `_values` contains the values of figures that do
    not show ranks or collectives.
    """

    _title = "Figure"
    _values: Table | None = None

    def apply_style(self, *, height: int, notes: tuple[str, ...] = ()) -> None:
        """Set the colours, the legend above the figure, and `notes` below it."""
        self.update_layout(
            template="none",
            height=height + _NOTE_PX * len(notes),
            paper_bgcolor=_CLEAR,
            plot_bgcolor=_CLEAR,
            font={"color": INK, "size": 13},
            legend={"orientation": "h", "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom"},
            legend_traceorder="normal",
            hoverlabel={"namelength": -1},
            margin={"l": 20, "r": 20, "t": 60, "b": 54 + _NOTE_PX * len(notes)},
        )
        axis = {
            "gridcolor": _GRID,
            "linecolor": INK,
            "zerolinecolor": _GRID,
            "automargin": True,
            "title_standoff": 8,
            "title_font_size": 13,
        }
        self.update_xaxes(**axis)
        self.update_yaxes(**axis)
        for line, text in enumerate(notes):
            self.add_annotation(
                text=text, xref="paper", yref="paper", x=0, y=0, xanchor="left", yanchor="top",
                yshift=-(_BELOW_AXIS_PX + _NOTE_PX * line), showarrow=False, font_size=11,
                align="left",
            )  # fmt: skip

    def _repr_mimebundle_(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        bundle: dict[str, Any] = super()._repr_mimebundle_(*arguments, **options)
        if bundle:  # empty if plotly opens a browser instead
            bundle.setdefault("text/html", static_html(self, self._title, self._values))
            bundle.setdefault("text/plain", self._title)
        return bundle

    def _ipython_display_(self) -> None:
        bundle = self._repr_mimebundle_()
        if not bundle:
            super()._ipython_display_()
            return
        from IPython.display import display

        display(bundle, raw=True)


def new_figure(title: str) -> TimingsFigure:
    """Return an empty figure with a title for its plain-text form."""
    figure = TimingsFigure()
    figure._title = title
    return figure
