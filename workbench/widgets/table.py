"""A plain table, as text and as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from workbench.errors import printable

_STYLE = "font-variant-numeric:tabular-nums;border-collapse:collapse;font-size:12px"
_CELL = "padding:2px 10px 2px 0;text-align:left"


class Table:
    """A title, rows under a head, and what is to be said below.

    Parameters
    ----------
    title
        One line.
    head
        The columns' names.
    rows
        Texts, as many in each as in `head`.
    notes
        Lines.
    """

    def __init__(
        self,
        title: str,
        head: Sequence[str],
        rows: Sequence[Sequence[str]],
        notes: Sequence[str] = (),
    ) -> None:
        # texts of files and of other machines are among them
        self._title, self._head = printable(title), head
        self._rows = [[printable(cell) for cell in row] for row in rows]
        self._notes = [printable(note) for note in notes]

    def __repr__(self) -> str:
        lines = [self._head, *self._rows] if self._rows else []
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        return "\n".join([self._title, *table, *self._notes])

    def _repr_html_(self) -> str:
        title, notes = (
            "".join(f"<div>{escape(line)}</div>" for line in lines)
            for lines in ([self._title], self._notes)
        )
        if not self._rows:
            return title + notes
        head = "".join(
            f'<th scope="col" style="{_CELL}">{escape(name)}</th>' for name in self._head
        )
        body = "".join(
            "<tr>" + "".join(f'<td style="{_CELL}">{escape(cell)}</td>' for cell in row) + "</tr>"
            for row in self._rows
        )
        return f'{title}<table style="{_STYLE}"><tr>{head}</tr>{body}</table>{notes}'
