"""The values of a plotly figure as a table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from workbench.widgets.table import Table

_MAX_ROWS = 60
_TAGS = re.compile(r"<[^>]*>")


def values_table(figure: Any, name: str) -> Table:
    """Return the values of a figure of bars, boxes or points."""
    kinds = {trace.type for trace in figure.data}
    if "box" in kinds:
        head: tuple[str, ...] = ("rank", "what", "5 %", "25 %", "median", "75 %", "95 %")
        rows = list(_box_rows(figure))
    elif "bar" in kinds:
        head = ("rank", "what", "ms")
        rows = list(_bar_rows(figure))
    else:
        head = ("collective", "kind", "bytes", "10 %", "median (ms)", "90 %")
        rows = list(_point_rows(figure))
    left_out = len(rows) - _MAX_ROWS
    notes = [f"{left_out:,} further rows are not shown."] if left_out > 0 else []
    return Table(name, head, rows[:_MAX_ROWS], notes)


def plain(text: object, line_break: str = " ") -> str:
    """Return a figure's text without its markup.

    Examples
    --------
    >>> plain("rank 0<br><b>vm1</b>", ", ")
    'rank 0, vm1'
    """
    return _TAGS.sub("", str(text).replace("<br>", line_break))


def values(trace_property: Any) -> list[Any]:
    """Return a property of a trace as a list, empty if it is not set."""
    return [] if trace_property is None else list(trace_property)


def floats(trace_property: Any) -> list[float]:
    """Return a property of a trace as a list of numbers."""
    return [float(value) for value in values(trace_property)]


def row_names(figure: Any) -> list[str]:
    """Return the names of a figure's rows; empty if its y axis is numeric."""
    axis = figure.layout.yaxis
    if axis.tickvals is not None and axis.ticktext is not None:
        return [plain(text, ", ") for text in axis.ticktext]
    named = [y for trace in figure.data for y in values(trace.y) if isinstance(y, str)]
    return list(dict.fromkeys(named))


def points(trace: Any) -> Iterator[tuple[float, float, float]]:
    """Yield each point of a trace: the lower end of its error bar, its y value, the upper end."""
    middle = floats(trace.y)
    above = floats(trace.error_y.array) or [0.0] * len(middle)
    below = floats(trace.error_y.arrayminus) or above
    for y, up, down in zip(middle, above, below, strict=True):
        yield y - down, y, y + up


def _box_rows(figure: Any) -> Iterator[tuple[str, ...]]:
    for trace in figure.data:
        # A trace names its axis "x" or "x2"; the layout calls the same axis "xaxis" or "xaxis2".
        title = plain(figure.layout["xaxis" + (trace.xaxis or "x")[1:]].title.text or "")
        fences = (trace.lowerfence, trace.q1, trace.median, trace.q3, trace.upperfence)
        for row, *quantiles in zip(values(trace.y), *map(floats, fences), strict=True):
            yield (str(row), title, *(f"{value:,.3f}" for value in quantiles))


def _bar_rows(figure: Any) -> Iterator[tuple[str, ...]]:
    """Yield a row per bar; the longest bar of each trace comes first."""
    rows = row_names(figure)
    for trace in figure.data:
        if (trace.opacity or 1.0) < 1:
            continue  # this trace marks the uncertain end of another bar
        texts = values(trace.hovertext) if trace.name == "collective" else []
        names = [
            f"collective {plain(text.partition(': ')[2].partition('<br>')[0])}" for text in texts
        ]
        bar_names = names or [trace.name] * len(values(trace.y))
        bars = zip(values(trace.y), floats(trace.x), bar_names, strict=True)
        for y, length, name in sorted(bars, key=lambda bar: -bar[1]):
            row = y if isinstance(y, str) else rows[min(len(rows) - 1, max(0, round(float(y))))]
            yield (row, name, f"{length:,.3f}")


def _point_rows(figure: Any) -> Iterator[tuple[str, ...]]:
    """Yield a row per point; the point with the largest y value comes first."""
    rows: list[tuple[str, str, float, tuple[float, float, float]]] = []
    for trace in figure.data:
        if "markers" in (trace.mode or ""):
            texts = values(trace.text) or [""] * len(values(trace.x))
            rows += zip(
                texts, [trace.name] * len(texts), floats(trace.x), points(trace), strict=True
            )
    for text, kind, size, (low, middle, high) in sorted(rows, key=lambda row: -row[3][1]):
        yield (str(text), kind, f"{size:,.0f}", f"{low:,.3f}", f"{middle:,.3f}", f"{high:,.3f}")
