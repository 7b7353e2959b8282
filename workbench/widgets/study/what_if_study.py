"""Sliders for `what_if`, with the predicted iteration as a figure."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go
from ipywidgets import HTML, Checkbox, FloatLogSlider, HBox, IntSlider, SelectionSlider, VBox

from workbench.advisor.measured_training import MeasuredTraining
from workbench.advisor.what_if import Prediction, link_gbps, predict
from workbench.errors import UsageError
from workbench.widgets.phases import EXPOSED, OTHER, OVERLAPPED
from workbench.widgets.plotly_figure import new_figure

_COMPUTE = OTHER.color
_TRANSFER = OVERLAPPED.color
_MB = 1 << 20
_FUSION = [("off", 0), *((f"{1 << power} MB", _MB << power) for power in range(9))]
_CYCLES_MS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
_CURVE_POINTS = 25
_ROWS = ["measured", "predicted", "transfers"]
_DECADES = 1.5
"""How many powers of ten of link rates are shown on each side of the measured rate."""
_SLIDER = {"continuous_update": True, "style": {"description_width": "11em"}}


class WhatIfStudy(VBox):
    """Sliders for the changes of `what_if`, and the predicted iteration.

    Attributes
    ----------
    prediction
        The prediction for the current positions of the sliders; None if these have no prediction.
    controls
        The sliders by the name of their change.
    """

    def __init__(self, measured: MeasuredTraining) -> None:
        self._measured = measured
        self.controls = _controls(measured)
        self._defaults = {name: control.value for name, control in self.controls.items()}
        self._figure = go.FigureWidget(_figure(measured))
        self._text = HTML()
        self.prediction: Prediction | None
        for control in self.controls.values():
            control.observe(self._update, "value")
        rows = list(self.controls.values())
        half = (len(rows) + 1) // 2
        super().__init__([HBox([VBox(rows[:half]), VBox(rows[half:])]), self._figure, self._text])
        self._update()

    def _changes(self) -> dict[str, Any]:
        """Return the changes of the sliders that were moved."""
        changes = {
            name: control.value
            for name, control in self.controls.items()
            if control.value != self._defaults[name]
        }
        if changes.pop("compression", False):
            changes["compression"] = "fp16"
        return changes

    def _update(self, _change: object = None) -> None:
        changes = self._changes()
        try:
            prediction = self.prediction = predict(self._measured, **changes)
            self._measured.check_replay(prediction.replay_error)
            curve = [
                predict(self._measured, **{**changes, "gbps": gbps}).predicted_us / 1e3
                for gbps in _rates(self._measured)
            ]
        except UsageError as error:  # this combination of positions has no prediction
            self.prediction = None
            self._figure.update_traces(visible=False)
            self._text.value = f"<b>No prediction.</b> {escape(str(error))}"
            return
        self._show(prediction, curve)

    def _show(self, prediction: Prediction, curve: list[float]) -> None:
        transfers_us = prediction.simulated.transfers_us
        figure = self._figure
        with figure.batch_update():
            figure.update_traces(visible=True, opacity=1.0 if prediction.reliable else 0.3)
            compute, exposed, transfers, line, current = figure.data
            exposed.base = compute.x = [us / 1e3 for us in _compute_us(prediction)]
            exposed.x = [
                prediction.measured_exposed_us / 1e3,
                prediction.predicted_exposed_us / 1e3,
            ]
            transfers.base = [begin / 1e3 for begin, _ in transfers_us]
            transfers.x = [(end - begin) / 1e3 for begin, end in transfers_us]
            transfers.y = [2] * len(transfers_us)
            line.y = curve
            current.x = [self.controls["gbps"].value]
            current.y = [prediction.predicted_us / 1e3]
        self._text.value = (
            f"<b>{prediction.measured_us / 1e3:,.1f} ms measured, "
            f"{prediction.predicted_us / 1e3:,.1f} ms {prediction.heading} "
            f"({prediction.speedup:.2f}x, {prediction.exposed_share:.0%} exposed)</b><br>"
            + "<br>".join(map(escape, prediction.remarks))
        )

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        """Return the widget, and the prediction for pages without a kernel."""
        bundle: dict[str, Any] = super()._repr_mimebundle_(**options)
        prediction = self.prediction
        bundle["text/html"] = self._text.value if prediction is None else prediction._repr_html_()
        bundle["text/plain"] = "No prediction." if prediction is None else repr(prediction)
        return bundle


def _controls(measured: MeasuredTraining) -> dict[str, Any]:
    """Return a slider for each change, at the measured value."""
    rates = _rates(measured)
    low = np.log10(rates[0])
    high = np.log10(rates[-1])
    sliders: dict[str, Any] = {
        "gbps": FloatLogSlider(
            round(link_gbps(measured), 3), min=low, max=high, step=0.02,
            description="Link, Gbit/s", readout_format=".3g", **_SLIDER,
        ),
        "ranks": IntSlider(
            measured.ranks, min=2, max=max(64, measured.ranks), description="Ranks", **_SLIDER
        ),
        "batch_scale": FloatLogSlider(
            1.0, min=-2, max=4, base=2, step=0.25, description="Batch, factor", **_SLIDER
        ),
        "compression": Checkbox(False, description="16-bit gradients (fp16)"),
    }  # fmt: skip
    if measured.fuses:
        fusion = min(
            (size for _, size in _FUSION),
            key=lambda size_bytes: abs(size_bytes - measured.model.fusion_bytes),
        )
        cycle = min(_CYCLES_MS, key=lambda ms: abs(ms - measured.model.cycle_us / 1e3))
        sliders["fusion_threshold_bytes"] = SelectionSlider(
            options=_FUSION, value=fusion, description="Fusion threshold", **_SLIDER
        )
        sliders["cycle_time_ms"] = SelectionSlider(
            options=_CYCLES_MS, value=cycle, description="Cycle time, ms", **_SLIDER
        )
    return sliders


def _rates(measured: MeasuredTraining) -> list[float]:
    """Return the link rates of the curve, in 10^9 bits per second."""
    log_measured_rate = np.log10(link_gbps(measured))
    return [
        float(rate)
        for rate in np.logspace(
            log_measured_rate - _DECADES, log_measured_rate + _DECADES, _CURVE_POINTS
        )
    ]


def _compute_us(prediction: Prediction) -> tuple[float, float]:
    """Return an iteration without exposed communication in microseconds: measured, predicted."""
    return (
        prediction.measured_us - prediction.measured_exposed_us,
        prediction.predicted_us - prediction.predicted_exposed_us,
    )


def _figure(measured: MeasuredTraining) -> Any:
    """Return the figure without its predicted values."""
    bar = {"orientation": "h", "xaxis": "x", "yaxis": "y"}
    figure = new_figure("What-if: predicted iteration")
    figure.add_bar(x=[0, 0], y=[0, 1], name="compute", marker_color=_COMPUTE, **bar)
    figure.add_bar(
        x=[0, 0], y=[0, 1], name="exposed communication", marker_color=EXPOSED.color, **bar
    )
    figure.add_bar(x=[0], y=[2], name="transfers", marker_color=_TRANSFER, **bar)
    figure.add_scatter(
        x=_rates(measured), name="predicted, by link rate", xaxis="x2", yaxis="y2",
        line={"color": _TRANSFER},
    )  # fmt: skip
    figure.add_scatter(
        name="here", mode="markers", xaxis="x2", yaxis="y2",
        marker={"color": EXPOSED.color, "size": 10},
    )  # fmt: skip
    figure.update_layout(
        barmode="overlay",
        xaxis={"domain": [0, 0.58], "title": "time (ms)"},
        yaxis={"tickvals": [0, 1, 2], "ticktext": _ROWS, "range": [2.6, -0.6]},
        xaxis2={"domain": [0.68, 1], "anchor": "y2", "type": "log", "title": "link (Gbit/s)"},
        yaxis2={"anchor": "x2", "title": "iteration (ms)", "rangemode": "tozero"},
    )
    figure.apply_style(height=280)
    return figure
