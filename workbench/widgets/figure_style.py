"""How figures for study look: legible on a light theme and on a dark one.

A figure cannot read the theme that it stands in: it has no ground of its own,
and writes in a grey with the same contrast to white as to JupyterLab's dark.
"""

from __future__ import annotations

from typing import Any

INK = "#797979"
"""4.3 : 1 on white and on #111111."""
GRID = "rgba(127, 127, 127, 0.28)"
CLEAR = "rgba(0, 0, 0, 0)"
NOTE_PX = 18
"""Height of a line below a figure."""
_BELOW_AXIS_PX = 48
"""Where such lines begin: below the axis, its numbers and its name."""


def dress(figure: Any, *, height: int, notes: tuple[str, ...] = ()) -> Any:
    """Give a figure its colours, its legend above, and `notes` below it; return it."""
    figure.update_layout(
        template="none",
        height=height + NOTE_PX * len(notes),
        paper_bgcolor=CLEAR,
        plot_bgcolor=CLEAR,
        font={"color": INK, "size": 13},
        legend={"orientation": "h", "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom"},
        legend_traceorder="normal",
        hoverlabel={"namelength": -1},
        margin={"l": 20, "r": 20, "t": 60, "b": 54 + NOTE_PX * len(notes)},
    )
    look = {
        "gridcolor": GRID,
        "linecolor": INK,
        "zerolinecolor": GRID,
        "automargin": True,
        "title_standoff": 8,
        "title_font_size": 13,
    }
    figure.update_xaxes(**look)
    figure.update_yaxes(**look)
    for line, text in enumerate(notes):
        figure.add_annotation(
            text=text, xref="paper", yref="paper", x=0, y=0, xanchor="left", yanchor="top",
            yshift=-(_BELOW_AXIS_PX + NOTE_PX * line), showarrow=False, font_size=11, align="left",
        )  # fmt: skip
    return figure
