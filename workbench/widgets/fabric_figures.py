"""Figures of a fabric: the bandwidths of a VM, a calibration, and a matrix of pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.fabric import Bandwidth, FittedFabric, Hop, ring_us
from workbench.resources import Unknown
from workbench.widgets.phases import EXPOSED, FORWARD, OVERLAPPED
from workbench.widgets.table import Table

if TYPE_CHECKING:
    from workbench.fabric import BandwidthMatrix

_ROW_PX = 26
_MIN_PX = 150
_LINE_POINTS = 60
_NOTE_CHARACTERS = 95
_DASH = "\u2013"

# Cividis (Nuñez, Anderton and Renslow, 2018): a colour map with a lightness that grows
# evenly for every kind of colour vision.
_HEAT = (
    (0, 34, 78),
    (53, 69, 108),
    (102, 105, 112),
    (148, 142, 119),
    (200, 184, 102),
    (254, 232, 56),
)
_LIGHT_TEXT_BELOW = 0.5
_CELL = "padding:4px 10px;text-align:right;font-variant-numeric:tabular-nums"


def landscape_figure(
    bandwidths: Mapping[str, Sequence[Bandwidth]],
    weakest: Hop | Unknown | None = None,
    notes: Sequence[str] = (),
) -> Any:
    """Draw the rates of links and memories on one logarithmic axis, measured next to nominal.

    Parameters
    ----------
    bandwidths
        `fabric.landscape` by VM. With several VMs, each row has the VM's name.
    weakest
        The weakest hop of the job's ring, drawn as an additional row.
    notes
        Lines below the figure.
    """
    from workbench.widgets.plotly_figure import new_figure

    vm_bandwidths = [(vm, bandwidth) for vm, rows in bandwidths.items() for bandwidth in rows]
    row_labels = [
        f"{vm}: {bandwidth.name}" if len(bandwidths) > 1 else bandwidth.name
        for vm, bandwidth in vm_bandwidths
    ]
    rates = [
        (bandwidth.nominal_gb_per_s, bandwidth.measured_gb_per_s) for _, bandwidth in vm_bandwidths
    ]
    is_drawn = [any(not isinstance(rate, Unknown) for rate in pair) for pair in rates]
    drawn_positions = [position for position, has_rate in enumerate(is_drawn) if has_rate]
    figure = new_figure("Bandwidth of each link and memory, nominal and measured")
    traces: list[tuple[str, Any, str, list[tuple[float, int]]]] = [
        ("nominal", OVERLAPPED, "diamond", _points(rates, drawn_positions, 0)),
        ("measured", FORWARD, "circle", _points(rates, drawn_positions, 1)),
    ]
    lines = list(notes)
    if isinstance(weakest, Hop) and not isinstance(weakest.gb_per_s, Unknown):
        lines.insert(0, f"Weakest hop of the ring: {weakest}.")
        row_labels.append("weakest hop of the ring")
        traces.append(
            ("weakest hop", EXPOSED, "square", [(weakest.gb_per_s, len(drawn_positions))])
        )
        drawn_positions.append(len(row_labels) - 1)
    elif isinstance(weakest, Unknown):
        lines.insert(0, f"The weakest hop of the ring is unknown: {weakest.reason}.")
    for name, style, symbol, points in traces:
        if points:
            figure.add_trace(_marks(name, points, style, symbol))
    figure.apply_style(height=_MIN_PX + _ROW_PX * len(drawn_positions), notes=_wrapped(lines))
    figure.update_xaxes(title_text="GB/s in one direction", type="log", tickformat="~g", dtick=1)
    figure.update_yaxes(
        tickvals=list(range(len(drawn_positions))),
        ticktext=[row_labels[position] for position in drawn_positions],
        range=[len(drawn_positions) - 0.5, -0.5], zeroline=False,
    )  # fmt: skip
    # Not strict: `row_labels` may end with the weakest hop, which has no bandwidths.
    figure._values = _landscape_table(
        [*zip(row_labels, [bandwidth for _, bandwidth in vm_bandwidths], strict=False)], lines
    )
    return figure


def _wrapped(notes: Sequence[str]) -> tuple[str, ...]:
    return tuple(line for note in notes for line in wrap(note, _NOTE_CHARACTERS))


def _points(
    rates: list[tuple[float | Unknown, float | Unknown]], drawn_positions: list[int], column: int
) -> list[tuple[float, int]]:
    """Return the known rates of a column (0: nominal, 1: measured), each with its row."""
    row_rates = ((rates[position][column], row) for row, position in enumerate(drawn_positions))
    return [(rate, row) for rate, row in row_rates if not isinstance(rate, Unknown) and rate > 0]


def _landscape_table(rows: list[tuple[str, Bandwidth]], notes: list[str]) -> Table:
    """Return all rates, with the reasons of unknown ones."""
    cells = []
    for name, bandwidth in rows:
        nominal = bandwidth.nominal_gb_per_s
        measured = bandwidth.measured_gb_per_s
        texts = (f"unknown: {rate.reason}" if isinstance(rate, Unknown) else f"{rate:,.4g}"
                 for rate in (nominal, measured))  # fmt: skip
        share = _DASH
        if not isinstance(nominal, Unknown) and not isinstance(measured, Unknown):
            share = f"{measured / nominal:.0%}"
        cells.append((name, *texts, share))
    return Table(
        "GB/s in one direction", ("link or memory", "nominal", "measured", "achieved"), cells, notes
    )


def calibration_figure(fabric: FittedFabric, nominal_gbps: float | None = None) -> Any:
    """Draw the measured times of a calibration, the fitted line, and a ring at the nominal rate.

    Sizes that were left out of the fit have another mark.
    """
    from workbench.widgets.plotly_figure import new_figure
    from workbench.widgets.sizes import line_trace

    figure = new_figure(fabric.sentences[0])
    measured = [(float(size), us / 1e3) for size, us in
                zip(fabric.sizes_bytes, fabric.measured_us, strict=True)]  # fmt: skip
    held_out = [(float(size), us / 1e3) for size, us, _ in fabric.held_out]
    for name, style, symbol, points in (
        ("measured", OVERLAPPED, "circle", measured),
        ("held out", EXPOSED, "diamond", held_out),
    ):
        if points:
            figure.add_trace(_marks(name, points, style, symbol))
    sizes = np.geomspace(measured[0][0], measured[-1][0], _LINE_POINTS).tolist()
    fitted = [fabric.predict_us(size) for size in sizes]
    figure.add_trace(line_trace("calibrated", sizes, fitted, FORWARD, "solid"))
    if nominal_gbps is not None:
        nominal = [ring_us(size, fabric.n, nominal_gbps) for size in sizes]
        name = f"nominal, {nominal_gbps:g} Gbit/s"
        figure.add_trace(line_trace(name, sizes, nominal, EXPOSED, "dash"))
    notes = fabric.sentences
    figure.apply_style(height=440, notes=_wrapped(notes))
    figure.update_xaxes(title_text="size (bytes)", type="log", tickformat="~s", dtick=1)
    figure.update_yaxes(title_text="allreduce (ms)", type="log", tickformat="~g", dtick=1)
    rows = [(f"{size:,.0f}", f"{ms:,.3f}", f"{fabric.predict_us(size) / 1e3:,.3f}")
            for size, ms in sorted([*measured, *held_out])]  # fmt: skip
    figure._values = Table("Allreduces", ("bytes", "measured ms", "calibrated ms"), rows, notes)
    return figure


def _marks(name: str, points: list[tuple[float, Any]], style: Any, symbol: str) -> Any:
    import plotly.graph_objects as go

    return go.Scatter(
        name=name, mode="markers", x=[x for x, _ in points], y=[y for _, y in points],
        marker={
            "color": style.color, "size": 10, "symbol": symbol,
            "line": {"color": style.edge, "width": 1},
        },
        hovertemplate=name + ": %{x:.4g}, %{y:.4g}<extra></extra>",
    )  # fmt: skip


def matrix_html(matrix: BandwidthMatrix) -> str:
    """Return the bandwidths of pairs as two heat tables, with the slow links in words."""
    rates = [gbps for cells in (matrix.alone_gbps, matrix.together_gbps)
             for row in cells for gbps in row if gbps is not None]  # fmt: skip
    max_gbps = max(rates, default=1.0)
    tables = (
        _heat_table(f"{title}, Gbit/s from row to column", matrix.names, cells, max_gbps)
        for title, cells in (
            ("One pair at a time", matrix.alone_gbps),
            ("Disjoint pairs at once", matrix.together_gbps),
        )
    )
    slow = "".join(f"<div><b>Slow:</b> {escape(text)}</div>" for text in matrix.slow)
    unknown = f"<div><b>Unknown:</b> {escape(matrix.unknown)}</div>" if matrix.unknown else ""
    return (
        f'<div style="display:flex;gap:32px;flex-wrap:wrap;font-size:12px">{"".join(tables)}</div>'
        f'<div style="font-size:12px;margin-top:6px">{slow or "No link is slow."}{unknown}</div>'
    )


def _heat_table(title: str, names: Sequence[str], cells: Any, max_gbps: float) -> str:
    head = "".join(f'<th scope="col" style="{_CELL}">{escape(name)}</th>' for name in names)
    rows = "".join(
        f'<tr><th scope="row" style="{_CELL}">{escape(name)}</th>'
        f"{''.join(_heat_cell(gbps, max_gbps) for gbps in row)}</tr>"
        for name, row in zip(names, cells, strict=True)
    )
    return (
        '<table style="border-collapse:collapse;color:inherit"><caption style="text-align:left;'
        f'padding:4px 0">{title}</caption><tr><td></td>{head}</tr>{rows}</table>'
    )


def _heat_cell(gbps: float | None, max_gbps: float) -> str:
    if gbps is None:
        return f'<td style="{_CELL};opacity:.6">{_DASH}</td>'
    share = min(1.0, max(0.0, gbps / max_gbps))
    shares_of_colors = np.linspace(0, 1, len(_HEAT))
    channels = [
        round(float(np.interp(share, shares_of_colors, [color[channel] for color in _HEAT])))
        for channel in range(3)
    ]
    text_color = "#ffffff" if share < _LIGHT_TEXT_BELOW else "#111111"
    return f'<td style="{_CELL};background:rgb{tuple(channels)};color:{text_color}">{gbps:.3g}</td>'
