"""Small helpers to write SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray


def tag(name: str, attributes: Mapping[str, object], *children: str) -> str:
    """Return one element; underscores in attribute names become hyphens.

    Examples
    --------
    >>> tag("line", {"x1": 0, "stroke_width": 2})
    '<line x1="0" stroke-width="2"/>'
    """
    attribute_text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
    )
    content = "".join(children)
    return (
        f"<{name}{attribute_text}>{content}</{name}>" if content else f"<{name}{attribute_text}/>"
    )


def label(x: float, y: float, text: str, **attributes: object) -> str:
    """Return text at a point, in the surrounding text colour."""
    all_attributes = {"x": number(x), "y": number(y), "fill": "currentColor", **attributes}
    return tag("text", all_attributes, escape(text))


def line(x1: float, y1: float, x2: float, y2: float, **attributes: object) -> str:
    """Return a thin line in the text colour, faint by default."""
    coordinates = {"x1": number(x1), "y1": number(y1), "x2": number(x2), "y2": number(y2)}
    return tag(
        "line", {**coordinates, "stroke": "currentColor", "stroke_opacity": 0.2, **attributes}
    )


def number(value: float) -> str:
    """Return a coordinate with at most one decimal.

    Examples
    --------
    >>> number(12.0), number(12.345)
    ('12', '12.3')
    """
    return f"{value:.1f}".removesuffix(".0")


@dataclass(frozen=True)
class Frame:
    """A plot's position in the picture, and the values at its edges.

    Attributes
    ----------
    left, top, width, height
        In the picture's pixels.
    low, high
        Values at the bottom and at the top.
    """

    left: float
    top: float
    width: float
    height: float
    low: float
    high: float

    def y(self, value: float) -> float:
        """Return the y coordinate of a value, clipped to the plot."""
        share = (value - self.low) / (self.high - self.low)
        return self.top + self.height * (1 - min(1.0, max(0.0, share)))

    def x(self, column: float, count: int) -> float:
        """Return the x coordinate of the left edge of `column`, of `count` columns."""
        return self.left + self.width * column / count

    def area(self, tops: NDArray[np.float64]) -> str:
        """Return a path around stepped columns from 0 to `tops`; NaN counts as 0."""
        bottom = self.y(0.0)
        path = [f"M{number(self.left)} {number(bottom)}"]
        for column, top in enumerate(tops):
            height = bottom if math.isnan(top) else self.y(top)
            path.append(f"V{number(height)}H{number(self.x(column + 1, len(tops)))}")
        return "".join([*path, f"V{number(bottom)}Z"])

    def curve(self, values: NDArray[np.float64]) -> str:
        """Return a path through the middles of the columns, with gaps at NaN."""
        path = []
        pen = "M"
        for column, value in enumerate(values):
            if math.isnan(value):
                pen = "M"
                continue
            path.append(f"{pen}{number(self.x(column + 0.5, len(values)))} {number(self.y(value))}")
            pen = "L"
        return "".join(path)

    def rule(self, values: Iterable[float], scale: float = 1.0) -> str:
        """Return grid lines at values, with the values (times `scale`) at the left."""
        parts = []
        for value in values:
            y = self.y(value)
            parts.append(line(self.left, y, self.left + self.width, y))
            text = f"{abs(value) * scale:,.6g}"
            parts.append(label(self.left - 6, y + 4, text, text_anchor="end", opacity=0.75))
        return "".join(parts)


def round_up(value: float) -> float:
    """Return the next value at or above `value` of 1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8 x 10^n.

    Examples
    --------
    >>> round_up(7.1), round_up(130)
    (8.0, 150.0)
    """
    if not value > 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    steps = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
    return next(step for step in steps if step >= value / power - 1e-9) * power


def axis_end(values: NDArray[np.float64]) -> float:
    """Return the upper end of an axis: a round number above nearly all values.

    Outliers beyond twice the 95th percentile, such as a warm-up iteration, are cut off so
    that they do not flatten the other values.
    """
    positive = values[np.isfinite(values) & (values > 0)]
    if len(positive) == 0:
        return 1.0
    percentile_95 = float(np.quantile(positive, 0.95))
    top = float(positive.max())
    return round_up((top if top <= 2 * percentile_95 else 1.25 * percentile_95) * 1.04)
