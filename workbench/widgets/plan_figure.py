"""Figures of plans: efficiency by the number of VMs, and the roofline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.errors import UsageError
from workbench.resources import Unknown
from workbench.widgets.phases import BACKWARD, DATA, EXPOSED, FORWARD, OPTIMIZER, OVERLAPPED

if TYPE_CHECKING:
    from workbench.fabric import Plan

_COLOURS = tuple(style.color for style in (BACKWARD, EXPOSED, FORWARD, OPTIMIZER, OVERLAPPED, DATA))
_ROOF_POINTS = 60
_ROOF_DECADES = 2
"""How many powers of ten of the roof are drawn on each side of the ridge."""
_ESTIMATE = "The traffic of memory, and so the intensity, is an estimate; see the plan's formulas."
_NOTE = "Solid: without overlap. Dashed: all communication overlaps with the backward."


def scaling_figure(plans: Mapping[str, Plan]) -> Any:
    """Draw the efficiency of plans by the number of VMs.

    Parameters
    ----------
    plans
        Plans with a compute time, by the label of their line.

    Returns
    -------
    plotly.graph_objects.Figure
        The efficiency as lines: solid without overlap, dashed with full overlap.

    Raises
    ------
    UsageError
        There is no plan, or a plan has no efficiency.

    Examples
    --------
    >>> from workbench.fabric import plan
    >>> four_vms = plan("340M", gbps=10, compute_ms=500, vms=4)
    >>> [line.name for line in scaling_figure({"10 Gbit/s": four_vms}).data]
    ['10 Gbit/s', '10 Gbit/s, full overlap']
    """
    from workbench.widgets.plotly_figure import new_figure

    if not plans:
        raise UsageError("scaling_figure: no plan given. Give one or more, each with a label.")
    figure = new_figure("Efficiency of plans by the number of VMs")
    for position, (label, plan) in enumerate(plans.items()):
        rows = [row for row in plan.scaling if row.efficiency is not None]
        if not rows:
            raise UsageError(
                f"scaling_figure: the plan {label!r} has no efficiency. Make it with a rate of the "
                "link (gbps) and a time of compute (compute_ms or tflops)."
            )
        colour = _COLOURS[position % len(_COLOURS)]
        vms = [row.vms for row in rows]
        overlapped = [row.efficiency * row.sequential_s / row.overlapped_s for row in rows]  # type: ignore[operator]
        sequential = [row.efficiency for row in rows]
        options = {"x": vms, "mode": "lines", "legendgroup": label, "hovertemplate": "%{y:.0%}"}
        figure.add_scatter(y=sequential, name=label, line={"color": colour}, **options)
        figure.add_scatter(
            y=overlapped, name=f"{label}, full overlap", line={"color": colour, "dash": "dash"},
            showlegend=False, **options,
        )  # fmt: skip
    figure.apply_style(height=380, notes=(_NOTE,))
    figure.update_xaxes(title="VMs")
    figure.update_yaxes(title="efficiency", tickformat=".0%", rangemode="tozero")
    return figure


def roofline_figure(made: Plan) -> Any:
    """Draw the attainable rate of a plan's iteration below its roof, on logarithmic axes.

    Returns
    -------
    plotly.graph_objects.Figure
        The roof as a line, and the iteration as a point on it.

    Raises
    ------
    UsageError
        The roofline of the plan is unknown.
    """
    from workbench.widgets.plotly_figure import new_figure

    roof = made.roofline
    if isinstance(roof, Unknown):
        raise UsageError(f"roofline_figure: this plan has no roofline: {roof.reason}.")
    logarithms = np.log10([roof.ridge, roof.intensity])
    span = np.logspace(
        logarithms.min() - _ROOF_DECADES, logarithms.max() + _ROOF_DECADES, _ROOF_POINTS
    )
    intensities = sorted([*span.tolist(), roof.ridge])
    figure = new_figure(f"Roofline: {roof.bound} limits the compute of an iteration")
    figure.add_scatter(
        x=intensities, y=[roof.at(intensity) for intensity in intensities], mode="lines",
        name=f"{roof.tflops:g} TFLOP/s, {roof.memory_gb_per_s:g} GB/s",
        line={"color": OVERLAPPED.color},
    )  # fmt: skip
    figure.add_scatter(
        x=[roof.intensity], y=[roof.attainable_tflops], mode="markers", name="this iteration",
        marker={"color": EXPOSED.color, "symbol": "diamond", "size": 11},
    )  # fmt: skip
    figure.apply_style(height=380, notes=(_ESTIMATE,))
    figure.update_xaxes(title="operations per byte of memory", type="log", tickformat="~g", dtick=1)
    figure.update_yaxes(title="TFLOP/s", type="log", tickformat="~g", dtick=1)
    return figure
