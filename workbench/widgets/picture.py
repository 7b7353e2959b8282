"""The live view's last state as an SVG picture, for notebooks without a kernel.

The picture uses the surrounding text colour, so that it is legible on white and on dark.
"""

from __future__ import annotations

from html import escape
from itertools import pairwise

import numpy as np

from workbench.resources import Unknown
from workbench.widgets.grid import Array, Grid, decimate
from workbench.widgets.phases import EXPOSED, IN_STACK, IN_TIME, OVERLAPPED, PhaseStyle
from workbench.widgets.source import KeyFigures, TimingsReading
from workbench.widgets.svg import Frame, axis_end, label, line, number, round_up, tag
from workbench.widgets.tables import figures_line, summary_line

# Coordinates in pixels; SPLIT is between the charts over time and the newest iteration.
WIDTH = 960
HEIGHT = 384
LEFT = 56
SPLIT = 600
RIGHT = 948
COLUMNS_DRAWN = 240
MAX_ROWS = 16
"""Limit of the ranks that get a row of bars."""


def draw_picture(reading: TimingsReading, view_id: str) -> str:
    """Draw the view's state as SVG; before the first iteration, return one line of text.

    `view_id` makes ids within the picture unique on the page.
    """
    grid = Grid(reading.window, [rank_place.rank for rank_place in reading.status.ranks])
    if len(grid) == 0:
        return f"<p>{escape(summary_line(reading))}</p>"
    pattern = f"overlap-{view_id}"
    parts = [
        tag("title", {}, escape(summary_line(reading))),
        _overlap_pattern(pattern),
        label(LEFT, 14, figures_line(reading.summary), font_weight="bold"),
        _legend(pattern),
        _phases(grid, pattern),
        _waiting(grid),
        _bandwidth(grid, reading.summary),
        _one_iteration(grid, pattern),
    ]
    style = f"max-width:{WIDTH}px;width:100%;height:auto;font:11px system-ui,sans-serif"
    attributes = {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "role": "img", "style": style}
    return tag("svg", {"xmlns": "http://www.w3.org/2000/svg", **attributes}, *parts)


def _overlap_pattern(name: str) -> str:
    stroke = {"d": "M-1 7L7 -1M-1 1L1 -1M5 7L7 5", "stroke": OVERLAPPED.color, "stroke_width": 2}
    size = {"id": name, "width": 6, "height": 6, "patternUnits": "userSpaceOnUse"}
    return tag("defs", {}, tag("pattern", size, tag("path", stroke)))


def _paint(phase: PhaseStyle, pattern: str) -> dict[str, object]:
    """Return the SVG attributes of a phase; overlapped communication is hatched."""
    fill = f"url(#{pattern})" if phase is OVERLAPPED else phase.color
    return {"fill": fill, "stroke": phase.edge, "stroke_width": 1}


def _legend(pattern: str) -> str:
    parts = []
    for index, phase in enumerate((EXPOSED, OVERLAPPED, *IN_STACK[-2::-1])):
        x = SPLIT + 30 + (index % 4) * 80
        y = HEIGHT - 40 + (index // 4) * 18
        box = {"x": x, "y": y, "width": 9, "height": 9}
        parts.append(tag("rect", {**box, **_paint(phase, pattern)}))
        weight = "bold" if phase is EXPOSED else "normal"
        parts.append(label(x + 14, y + 9, phase.label, font_weight=weight))
    return "".join(parts)


def _phases(grid: Grid, pattern: str) -> str:
    """Draw the phases over the iterations, stacked, and overlapped communication below 0."""
    stack = [decimate(grid.mean(phase.column), COLUMNS_DRAWN) for phase in IN_STACK]
    overlapped_us = decimate(grid.mean(OVERLAPPED.column), COLUMNS_DRAWN)
    tops = np.cumsum([np.nan_to_num(values) for values in stack], axis=0)
    high = axis_end(tops[-1])
    low = -min(high, axis_end(overlapped_us)) if np.any(overlapped_us > 0) else 0.0
    frame = Frame(LEFT, 46, SPLIT - LEFT, 160, low, high)
    parts = [label(LEFT, 38, "phases, ms per iteration", font_weight="bold")]
    parts.append(frame.rule([0, high / 2, high], 1e-3))
    # Drawn from back to front, because each area covers the bottom of the previous one.
    for phase, top in zip(reversed(IN_STACK), tops[::-1], strict=True):
        parts.append(tag("path", {"d": frame.area(top), **_paint(phase, pattern)}))
    if low < 0:
        parts.append(tag("path", {"d": frame.area(-overlapped_us), **_paint(OVERLAPPED, pattern)}))
    return "".join(parts)


def _waiting(grid: Grid) -> str:
    """Draw how long each rank waits for the others, as a row of shades per rank."""
    waits = decimate(grid.column("wait_us"), COLUMNS_DRAWN)
    darkest_us = axis_end(waits.ravel())
    top = 232.0
    height = 40.0
    row_height = height / waits.shape[1]
    title = f"waiting for the others, darkest {darkest_us / 1e3:,.3g} ms"
    parts = [label(LEFT, top - 6, title, font_weight="bold")]
    step = max(1, -(-waits.shape[1] * 12 // int(height)))
    for row in range(waits.shape[1]):
        y = top + row * row_height
        if row % step == 0:
            text = f"rank {grid.ranks[row]}"
            parts.append(
                label(LEFT - 6, y + row_height / 2 + 4, text, text_anchor="end", opacity=0.75)
            )
        parts.extend(_heat_row(waits[:, row] / darkest_us, y, row_height))
    return "".join(parts)


def _heat_row(shares: Array, y: float, row_height: float) -> list[str]:
    """Return the row of a rank in twelve shades; equal neighbours share one rectangle."""
    shades = np.where(np.isnan(shares), -1, np.round(np.clip(shares, 0, 1) * 11)).astype(int)
    boundaries = [0, *(np.flatnonzero(np.diff(shades)) + 1), len(shades)]
    width = (SPLIT - LEFT) / len(shades)
    return [
        tag(
            "rect",
            {
                "x": number(LEFT + begin * width),
                "y": number(y),
                "width": number((end - begin) * width),
                "height": number(max(0.5, row_height - (1 if row_height >= 6 else 0))),
                "fill": "currentColor",
                "fill_opacity": f"{0.07 + 0.85 * shades[begin] / 11:.2f}",
            },
        )
        for begin, end in pairwise(boundaries)
        if shades[begin] >= 0
    ]


def _bandwidth(grid: Grid, summary: KeyFigures) -> str:
    """Draw the bandwidths over the iterations, and the nominal and the calibrated rate."""
    bus, alg = (decimate(grid.mean(name), COLUMNS_DRAWN) for name in ("busbw_gbps", "algbw_gbps"))
    measured = axis_top = axis_end(np.concatenate([bus, alg]))
    title = "bandwidth, Gbit/s: busbw solid, algbw dotted"
    rates = {"nominal": (summary.nominal_gbps, "8 4")}
    rates["calibrated"] = (summary.calibrated_gbps, "12 3 2 3")
    drawn_rates: list[tuple[float, str]] = []
    for name, (gbps, dashes) in rates.items():
        if isinstance(gbps, Unknown):
            continue
        title += f", {name} {gbps:,.3g}"
        if name == "calibrated" and not isinstance(summary.calibrated_error, Unknown):
            title += f" \u00b1 {summary.calibrated_error * 100:.0f} %"
        if gbps <= 4 * measured:
            axis_top = max(axis_top, round_up(gbps * 1.04))
            drawn_rates.append((gbps, dashes))
            title += " dashed" if name == "nominal" else " dash-dotted"
    frame = Frame(LEFT, 300, SPLIT - LEFT, 56, 0, axis_top)
    dashed = "".join(
        line(LEFT, frame.y(gbps), SPLIT, frame.y(gbps), stroke_dasharray=dashes, stroke_opacity=0.7)
        for gbps, dashes in drawn_rates
    )
    thin = {"fill": "none", "stroke": "currentColor"}
    return "".join(
        [
            label(LEFT, 294, title, font_weight="bold"),
            frame.rule([0, axis_top]),
            dashed,
            tag("path", {"d": frame.curve(alg), **thin, "stroke_dasharray": "2 2", "opacity": 0.7}),
            tag("path", {"d": frame.curve(bus), **thin, "stroke_width": 1.5}),
            label(LEFT, 374, f"iteration {grid.iterations[0]:,}", opacity=0.75),
            label(SPLIT, 374, f"{grid.iterations[-1]:,}", text_anchor="end", opacity=0.75),
        ]
    )


def _one_iteration(grid: Grid, pattern: str) -> str:
    """Return the newest iteration that all ranks have reported, as a row of bars per rank."""
    totals = grid.column("iteration_us")
    complete = np.flatnonzero(~np.isnan(totals).any(axis=1))
    index = int(complete[-1]) if len(complete) else len(grid) - 1
    count = min(MAX_ROWS, len(grid.ranks))
    row_height = min(48.0, 240.0 / count)
    longest = np.nanmax(totals[index], initial=1.0)
    frame = Frame(SPLIT + 76, 0, RIGHT - SPLIT - 76 - 62, 1, 0, round_up(longest * 1.01))
    hidden_ranks = len(grid.ranks) - count
    text = f"iteration {grid.iterations[index]:,}" + (
        f", {hidden_ranks} more ranks" if hidden_ranks else ""
    )
    parts = [label(SPLIT + 30, 38, text, font_weight="bold")]
    for row in range(count):
        y = 46 + row * row_height
        parts.append(
            label(SPLIT + 70, y + row_height / 2, f"rank {grid.ranks[row]}", text_anchor="end")
        )
        parts.append(
            label(
                RIGHT, y + row_height / 2, f"{totals[index, row] / 1e3:,.2f} ms", text_anchor="end"
            )
        )
        parts.extend(_bars(grid, index, row, frame, y, row_height, pattern))
    return "".join(parts)


def _bars(
    grid: Grid, index: int, row: int, frame: Frame, y: float, row_height: float, pattern: str
) -> list[str]:
    """Return the bars of a rank: phases, and below them communication that backward overlaps."""

    def box(phase: PhaseStyle, start: float, us: float, top: float, height: float) -> str:
        x = frame.left + frame.width * start / frame.high
        width = frame.width * us / frame.high
        position = {"x": number(x), "y": number(top), "width": number(width)}
        return tag("rect", {**position, "height": number(height), **_paint(phase, pattern)})

    parts = []
    start = 0.0
    backward_end_us = 0.0
    for phase in IN_TIME:
        us = float(np.nan_to_num(grid.column(phase.column)[index, row]))
        parts.append(box(phase, start, us, y, row_height * 0.6))
        start += us
        backward_end_us = start if phase.column == "backward_us" else backward_end_us
    overlapped_us = float(np.nan_to_num(grid.column(OVERLAPPED.column)[index, row]))
    parts.append(
        box(
            OVERLAPPED,
            max(0.0, backward_end_us - overlapped_us),
            overlapped_us,
            y + row_height * 0.6,
            row_height * 0.18,
        )
    )
    return parts
