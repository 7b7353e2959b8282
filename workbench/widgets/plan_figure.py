"""The efficiency that plans predict, by the number of VMs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workbench.errors import UsageError
from workbench.widgets.phases import BACKWARD, DATA, EXPOSED, FORWARD, OPTIMIZER, OVERLAPPED

if TYPE_CHECKING:
    from workbench.fabric import Plan

_COLOURS = tuple(style.color for style in (BACKWARD, EXPOSED, FORWARD, OPTIMIZER, OVERLAPPED, DATA))
_NOTE = "Solid: without overlap. Dashed: all communication overlaps with the backward."


def scaling_figure(plans: Mapping[str, Plan]) -> Any:
    """Draw the efficiency of plans by the number of VMs.

    Parameters
    ----------
    plans
        Plans with a time of compute, by the label of their line.

    Returns
    -------
    plotly.graph_objects.Figure
        The efficiency without overlap as a solid line, with full overlap as a dashed one.

    Raises
    ------
    UsageError
        There is no plan, or one has no efficiency.
    """
    from workbench.widgets.plotly_figure import new_figure

    if not plans:
        raise UsageError("scaling_figure: no plan given. Give one or more, each with a label.")
    figure = new_figure("Efficiency of plans by the number of VMs")
    for position, (label, made) in enumerate(plans.items()):
        rows = [row for row in made.scaling if row.efficiency is not None]
        if not rows:
            raise UsageError(
                f"scaling_figure: the plan {label!r} has no efficiency. Make it with a rate of the "
                "link (gbps) and a time of compute (compute_ms or tflops)."
            )
        colour = _COLOURS[position % len(_COLOURS)]
        vms = [row.vms for row in rows]
        full = [row.efficiency * row.sequential_s / row.overlapped_s for row in rows]  # type: ignore[operator]
        none = [row.efficiency for row in rows]
        options = {"x": vms, "mode": "lines", "legendgroup": label, "hovertemplate": "%{y:.0%}"}
        figure.add_scatter(y=none, name=label, line={"color": colour}, **options)
        figure.add_scatter(
            y=full, name=f"{label}, full overlap", line={"color": colour, "dash": "dash"},
            showlegend=False, **options,
        )  # fmt: skip
    figure.apply_style(height=380, notes=(_NOTE,))
    figure.update_xaxes(title="VMs")
    figure.update_yaxes(title="efficiency", tickformat=".0%", rangemode="tozero")
    return figure
