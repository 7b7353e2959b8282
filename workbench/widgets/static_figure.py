"""A plotly figure as static SVG and a table, for pages where no script draws it.

Exported notebooks, previews and e-mails show neither plotly's MIME type nor its script. This
module draws the elements of our figures: horizontal bars, boxes from quantiles, points and
lines, on linear and logarithmic axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from typing import Any, NamedTuple

import numpy as np

from workbench.widgets.figure_table import floats, plain, points, row_names, values, values_table
from workbench.widgets.svg import label, line, number, tag
from workbench.widgets.table import Table

# Lengths are in pixels.
WIDTH = 900
INK = "#797979"
"""Grey, with a contrast of 4.3 : 1 both with white and with #111111."""
_CHARACTER_PX = 6.6
_MIN_LEFT = 130
_MAX_LEFT = 360
_RIGHT = 16
_TOP = 44
_BELOW = 52
_LEGEND_PX = 130
_LEGEND_ROW_PX = 18
_NOTE_PX = 16
_POWERS = {1e12: "T", 1e9: "G", 1e6: "M", 1e3: "k"}


def static_html(figure: Any, name: str, values: Table | None = None) -> str:
    """Return a plotly figure as a picture, with its values in a collapsed table.

    `name` is the title for screen readers. `values` is the table, by default `values_table`.
    """
    table = values or values_table(figure, name)
    return (
        f"<div>{_picture(figure, name)}<details><summary>Values</summary>"
        f"{table._repr_html_()}</details></div>"
    )


class _Axis(NamedTuple):
    """A range of values, and the coordinates of its ends."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def at(self, value: float) -> float:
        """Return the coordinate of a value."""
        value, low, high = (
            (math.log10(max(number, 1e-300)) for number in (value, self.low, self.high))
            if self.log
            else (value, self.low, self.high)
        )
        return self.start + (self.end - self.start) * (value - low) / ((high - low) or 1.0)

    def ticks(self) -> list[float]:
        """Return round values within the range."""
        if self.log:
            first = math.floor(math.log10(self.low))
            last = math.ceil(math.log10(self.high))
            power_step = max(1, (last - first) // 8)
            powers = [10.0**power for power in range(first, last + 1, power_step)]
            return [power for power in powers if self.low <= power <= self.high]
        span = self.high - self.low
        decade = 10.0 ** math.floor(math.log10(span / 5)) if span > 0 else 1.0
        step = next(decade * factor for factor in (1, 2, 5, 10) if span / (decade * factor) <= 6)
        count = int(span / step + 1e-9)
        return [self.low + step * index for index in range(count + 1)]


class _Panel(NamedTuple):
    """The traces that share axes, and the names of the rows, if any.

    `titles` are the titles of the x axis and the y axis.
    """

    traces: list[Any]
    x: _Axis
    y: _Axis
    rows: list[str]
    titles: tuple[str, str]


def _picture(figure: Any, name: str) -> str:
    legend = _legend_entries(figure)
    left_px = _left_px(row_names(figure))
    entries_per_row = int(WIDTH - left_px) // _LEGEND_PX
    top = _TOP + _LEGEND_ROW_PX * max(0, math.ceil(len(legend) / entries_per_row) - 1)
    notes = [plain(note.text) for note in figure.layout.annotations if note.text]
    height = float(figure.layout.height or 400) - 20 * len(notes)
    bottom = max(height, top + _BELOW + 80) - _BELOW
    parts = [tag("title", {}, escape(name)), *_legend(legend, entries_per_row, left_px)]
    names = list(dict.fromkeys(trace.xaxis or "x" for trace in figure.data))
    width = (WIDTH - left_px - _RIGHT) / max(1, len(names))
    gap = 24 if len(names) > 1 else 0
    for index, axis in enumerate(names):
        traces = [trace for trace in figure.data if (trace.xaxis or "x") == axis]
        left = left_px + index * width
        panel = _panel(figure, axis, traces, (left, left + width - gap), (top, bottom))
        parts += [
            *_axes(panel, with_row_names=index == 0),
            *(_draw(panel, trace) for trace in traces),
        ]
    for line_number, note in enumerate(notes):
        parts.append(label(left_px, bottom + _BELOW + _NOTE_PX * line_number, note, opacity=0.8))
    total_height = bottom + _BELOW + _NOTE_PX * len(notes)
    style = f"max-width:{WIDTH}px;width:100%;height:auto;font:12px system-ui,sans-serif;color:{INK}"
    box = {"viewBox": f"0 0 {WIDTH} {number(total_height)}", "role": "img", "style": style}
    return tag("svg", {"xmlns": "http://www.w3.org/2000/svg", **box}, *parts)


# Positions and ranges


def _panel(
    figure: Any,
    name: str,
    traces: list[Any],
    x_ends: tuple[float, float],
    y_ends: tuple[float, float],
) -> _Panel:
    """Return a panel; `x_ends` and `y_ends` are the coordinates of its edges, in pixels."""
    x_axis = figure.layout["xaxis" + name[1:]]
    x_is_log = x_axis.type == "log"
    y_is_log = figure.layout.yaxis.type == "log"
    rows = row_names(figure)
    x = _axis(
        [value for trace in traces for value in _x_values(traces, trace)], x_ends, log=x_is_log
    )
    if rows:
        y = _Axis(-0.5, len(rows) - 0.5, *y_ends, log=False)
    else:
        top, bottom = y_ends
        y_values = [value for trace in traces for value in _y_values(trace)]
        y = _axis(y_values, (bottom, top), log=y_is_log)
    titles = plain(x_axis.title.text or ""), plain(figure.layout.yaxis.title.text or "")
    return _Panel(traces, x, y, rows, titles)


def _x_values(traces: list[Any], trace: Any) -> Iterator[float]:
    if trace.type == "bar":
        for base, width in zip(_bases(traces, trace), floats(trace.x), strict=True):
            yield from (base, base + width)
    elif trace.type == "box":
        yield 0.0
        yield from floats(trace.upperfence)
    else:
        yield from floats(trace.x)


def _bases(traces: list[Any], trace: Any) -> list[float]:
    """Return where a trace's bars begin: its `base`, or the end of the bars stacked below."""
    bases = floats(trace.base)
    if bases:
        return bases
    ends: dict[Any, float] = {}
    for earlier in traces:
        if earlier is trace:
            break
        for y, x in zip(values(earlier.y), floats(earlier.x), strict=True):
            ends[y] = ends.get(y, 0.0) + x
    return [ends.get(y, 0.0) for y in values(trace.y)]


def _y_values(trace: Any) -> Iterator[float]:
    for low, middle, high in points(trace):
        yield from (low, middle, high)


def _axis(values: list[float], ends: tuple[float, float], *, log: bool) -> _Axis:
    """Return an axis that covers the values; a linear axis includes 0."""
    drawable = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    low, high = (min(drawable), max(drawable)) if drawable else (1.0, 1.0)
    if log:
        return _Axis(low / 1.5, high * 1.5, *ends, log=True)
    return _Axis(min(0.0, low), high * 1.03 if high > 0 else 1.0, *ends, log=False)


# Drawing


def _axes(panel: _Panel, *, with_row_names: bool) -> Iterator[str]:
    """Draw the grid lines, the labels of ticks or rows, and the titles of the axes."""
    x = panel.x
    y = panel.y
    rows = panel.rows
    x_title, y_title = panel.titles
    bottom = max(y.start, y.end)
    for value in x.ticks():
        yield line(x.at(value), min(y.start, y.end), x.at(value), bottom)
        yield label(x.at(value), bottom + 16, _tick(value, log=x.log), text_anchor="middle")
    middle = (x.start + x.end) / 2
    yield label(middle, bottom + 34, x_title, text_anchor="middle")
    if rows:
        step = math.ceil(len(rows) * 14 / abs(y.end - y.start))
        for index, row in enumerate(rows if with_row_names else ()):
            if index % step == 0:
                yield label(x.start - 8, y.at(index) + 4, row, text_anchor="end")
        return
    for value in y.ticks():
        yield line(x.start, y.at(value), x.end, y.at(value))
        yield label(x.start - 8, y.at(value) + 4, _tick(value, log=y.log), text_anchor="end")
    center = (y.start + y.end) / 2
    rotated = {"transform": f"rotate(-90 {number(x.start - 70)} {number(center)})"}
    yield label(x.start - 70, center, y_title, text_anchor="middle", **rotated)


def _draw(panel: _Panel, trace: Any) -> str:
    draw = {"bar": _bars, "box": _boxes}.get(trace.type, _marks)
    return tag("g", {"opacity": number(trace.opacity or 1.0)}, *draw(panel, trace))


def _bars(panel: _Panel, trace: Any) -> Iterator[str]:
    """Draw horizontal bars."""
    widths = floats(trace.width) or [0.7] * len(values(trace.x))
    bases = _bases(panel.traces, trace)
    paint = {"fill": trace.marker.color, "stroke": trace.marker.line.color, "stroke_width": 0.5}
    for y, thickness, base, length in zip(
        values(trace.y), widths, bases, floats(trace.x), strict=True
    ):
        center = float(panel.rows.index(y)) if isinstance(y, str) else float(y)
        top = panel.y.at(center - thickness / 2)
        bottom = panel.y.at(center + thickness / 2)
        left = panel.x.at(base)
        right = panel.x.at(base + length)
        box = {"x": number(left), "y": number(top)}
        size = {"width": number(max(0.3, right - left)), "height": number(bottom - top)}
        yield tag("rect", {**box, **size, **paint})


def _boxes(panel: _Panel, trace: Any) -> Iterator[str]:
    """Draw horizontal boxes, with whiskers to the outer quantiles and a line at the median."""
    stroke = {"stroke": trace.line.color, "stroke_width": 2, "stroke_opacity": 1}
    fences = (trace.lowerfence, trace.q1, trace.median, trace.q3, trace.upperfence)
    half = min(12.0, 0.35 * abs(panel.y.at(1) - panel.y.at(0)))
    for row, *quantiles in zip(values(trace.y), *map(floats, fences), strict=True):
        y = panel.y.at(panel.rows.index(row))
        low, first, median, third, high = map(panel.x.at, quantiles)
        yield line(low, y, high, y, **stroke)
        box = {"x": number(first), "y": number(y - half)}
        size = {"width": number(max(0.5, third - first)), "height": number(2 * half)}
        yield tag("rect", {**box, **size, "fill": trace.fillcolor, **stroke})
        for x in (low, median, high):
            yield line(x, y - half, x, y + half, **stroke)


def _marks(panel: _Panel, trace: Any) -> Iterator[str]:
    """Draw a line, or points with their error bars."""
    xs = [panel.x.at(x) for x in floats(trace.x)]
    if "lines" in (trace.mode or ""):
        ys = [panel.y.at(y) for y in floats(trace.y)]
        path = "L".join(f"{number(x)} {number(y)}" for x, y in zip(xs, ys, strict=True))
        dash = {"stroke_dasharray": "6 4"} if trace.line.dash == "dash" else {}
        yield tag("path", {"d": f"M{path}", "fill": "none", "stroke": trace.line.color, **dash})
        return
    for x, (low, middle, high) in zip(xs, points(trace), strict=True):
        bar = {"stroke": trace.marker.color, "stroke_opacity": 1}
        yield line(x, panel.y.at(max(low, panel.y.low)), x, panel.y.at(high), **bar)
        point = {"cx": number(x), "cy": number(panel.y.at(middle)), "r": 4}
        edge = {"stroke": trace.marker.line.color, "fill": trace.marker.color}
        yield tag("circle", {**point, **edge})


def _legend_entries(figure: Any) -> list[tuple[str, str, float]]:
    """Return the name, the colour and the opacity of each trace in the legend."""
    if figure.layout.showlegend is False:
        return []
    return [
        (trace.name, trace.marker.color or trace.line.color, trace.opacity or 1.0)
        if trace.type != "scatter" or "markers" in trace.mode
        else (trace.name, trace.line.color, 1.0)
        for trace in figure.data
        if trace.name and trace.showlegend is not False
    ]


def _left_px(rows: list[str]) -> float:
    """Return the space for the names of rows, or for the ticks of an axis."""
    return max(_MIN_LEFT, min(_MAX_LEFT, _CHARACTER_PX * max(map(len, rows), default=0) + 12))


def _legend(
    entries: list[tuple[str, str, float]], entries_per_row: int, left_px: float
) -> Iterator[str]:
    for index, (name, color, opacity) in enumerate(entries):
        x = left_px + (index % entries_per_row) * _LEGEND_PX
        y = 8 + (index // entries_per_row) * _LEGEND_ROW_PX
        box = {"x": x, "y": y, "width": 10, "height": 10, "fill": color, "opacity": opacity}
        yield tag("rect", box)
        yield label(x + 15, y + 9, name)


def _tick(value: float, *, log: bool) -> str:
    """Return the label of a tick; a logarithmic axis uses unit prefixes, such as ``10k``."""
    if log:
        for power, letter in _POWERS.items():
            if value >= power:
                return f"{value / power:g}{letter}"
    return f"{0.0 if np.isclose(value, 0) else value:,.6g}"
