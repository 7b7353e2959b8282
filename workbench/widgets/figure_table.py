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
        head, rows = ("rank", "what", "ms"), list(_bar_rows(figure))
    else:
        head = ("collective", "kind", "bytes", "10 %", "median (ms)", "90 %")
        rows = list(_point_rows(figure))
    left_out = len(rows) - _MAX_ROWS
    notes = [f"{left_out:,} further rows are not shown."] if left_out > 0 else []
    return Table(name, head, rows[:_MAX_ROWS], notes)


def plain(text: object, between: str = " ") -> str:
    """Return a figure's text without its markup."""
    return _TAGS.sub("", str(text).replace("<br>", between))


def values(given: Any) -> list[Any]:
    """Return a property of a trace as a list, empty if it is not set."""
    return [] if given is None else list(given)


def floats(given: Any) -> list[float]:
    """Return a property of a trace as a list of numbers."""
    return [float(value) for value in values(given)]


def row_names(figure: Any) -> list[str]:
    """Return the names of a figure's rows, empty if its y axis is numeric."""
    axis = figure.layout.yaxis
    if axis.tickvals is not None and axis.ticktext is not None:
        return [plain(text, ", ") for text in axis.ticktext]
    named = [y for trace in figure.data for y in values(trace.y) if isinstance(y, str)]
    return list(dict.fromkeys(named))


def points(trace: Any) -> Iterator[tuple[float, float, float]]:
    """Yield the y values of points with the ends of their error bars."""
    middle = floats(trace.y)
    above = floats(trace.error_y.array) or [0.0] * len(middle)
    below = floats(trace.error_y.arrayminus) or above
    for y, up, down in zip(middle, above, below, strict=True):
        yield y - down, y, y + up


def _box_rows(figure: Any) -> Iterator[tuple[str, ...]]:
    for trace in figure.data:
        what = plain(figure.layout["xaxis" + (trace.xaxis or "x")[1:]].title.text or "")
        fences = (trace.lowerfence, trace.q1, trace.median, trace.q3, trace.upperfence)
        for row, *quantiles in zip(values(trace.y), *map(floats, fences), strict=True):
            yield (str(row), what, *(f"{value:,.3f}" for value in quantiles))


def _bar_rows(figure: Any) -> Iterator[tuple[str, ...]]:
    """Yield a row per bar with its name, the longest of each trace first."""
    rows = row_names(figure)
    for trace in figure.data:
        if (trace.opacity or 1.0) < 1:
            continue  # it marks the uncertain end of another bar
        texts = values(trace.hovertext) if trace.name == "collective" else []
        names = [
            f"collective {plain(text.partition(': ')[2].partition('<br>')[0])}" for text in texts
        ]
        every = names or [trace.name] * len(values(trace.y))
        found = zip(values(trace.y), floats(trace.x), every, strict=True)
        for y, long, what in sorted(found, key=lambda one: -one[1]):
            row = y if isinstance(y, str) else rows[min(len(rows) - 1, max(0, round(float(y))))]
            yield (row, what, f"{long:,.3f}")


def _point_rows(figure: Any) -> Iterator[tuple[str, ...]]:
    found: list[tuple[str, str, float, tuple[float, float, float]]] = []
    for trace in figure.data:
        if "markers" in (trace.mode or ""):
            texts = values(trace.text) or [""] * len(values(trace.x))
            found += zip(
                texts, [trace.name] * len(texts), floats(trace.x), points(trace), strict=True
            )
    for text, kind, size, (low, middle, high) in sorted(found, key=lambda one: -one[3][1]):
        yield (str(text), kind, f"{size:,.0f}", f"{low:,.3f}", f"{middle:,.3f}", f"{high:,.3f}")
