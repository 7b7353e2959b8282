"""A plain table as text and as HTML."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from workbench.errors import printable

if TYPE_CHECKING:
    from IPython.core.formatters import DisplayFormatter

_STYLE = "font-variant-numeric:tabular-nums;border-collapse:collapse;font-size:12px"
_CELL = "padding:2px 10px 2px 0;vertical-align:top;text-align:"
_NUMBER = re.compile(r"[-+]?(\d+|\d{1,3}(,\d{3})+)(\.\d+)?( ?[^\W\d_/%][\w/]*| ?%)?")
"""A number, perhaps with its unit."""
_NONE = ("\u2013", "none", "unknown")
"""Text at the start of a cell without a number, in a column of numbers."""


class Table:
    """A title, column names (`head`), rows of texts, and notes below.

    Examples
    --------
    >>> Table("2 ranks", ("rank", "state"), [("0", "ready"), ("1", "running")])
    2 ranks
    rank  state
       0  ready
       1  running
    """

    def __init__(
        self,
        title: str,
        head: Sequence[str],
        rows: Sequence[Sequence[str]],
        notes: Sequence[str] = (),
    ) -> None:
        # The texts are made printable, because some text comes from files and other VMs.
        self._title = printable(title)
        self._head = head
        self._rows = [[printable(cell) for cell in row] for row in rows]
        self._notes = [printable(note) for note in notes]

    def __repr__(self) -> str:
        lines = [self._head, *self._rows] if self._rows else []
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        justify_functions = [
            str.rjust if is_numeric else str.ljust for is_numeric in self._numeric()
        ]
        table = [
            "  ".join(
                justify(cell, width)
                for justify, cell, width in zip(justify_functions, line, widths, strict=True)
            ).rstrip()
            for line in lines
        ]
        return "\n".join([self._title, *table, *self._notes])

    def _repr_html_(self) -> str:
        title, notes = (
            "".join(f"<div>{escape(line)}</div>" for line in lines)
            for lines in ([self._title], self._notes)
        )
        if not self._rows:
            return title + notes
        styles = [_CELL + ("right" if is_numeric else "left") for is_numeric in self._numeric()]
        head = "".join(
            f'<th scope="col" style="{style}">{escape(name)}</th>'
            for name, style in zip(self._head, styles, strict=True)
        )
        body = "".join(
            "<tr>"
            + "".join(
                f'<td style="{style}">{escape(cell)}</td>'
                for cell, style in zip(row, styles, strict=True)
            )
            + "</tr>"
            for row in self._rows
        )
        return f'{title}<table style="{_STYLE}"><tr>{head}</tr>{body}</table>{notes}'

    def _numeric(self) -> list[bool]:
        """Return for each column whether its cells are numbers, which are right-aligned."""
        columns = [
            [cell for cell in column if not (cell == "" or cell.startswith(_NONE))]
            for column in zip(*self._rows, strict=True)
        ]
        return [bool(cells) and all(map(_NUMBER.fullmatch, cells)) for cells in columns]


def show_as_table(
    formatter: DisplayFormatter, module: str, name: str, table: Callable[[Any], Table]
) -> None:
    """Make notebooks and terminals show the objects of a class as the result of `table`.

    `module` and `name` identify the class, so that its module is imported only when needed.
    """
    html = formatter.formatters["text/html"]
    text = formatter.formatters["text/plain"]
    html.for_type_by_name(module, name, lambda shown: table(shown)._repr_html_())
    text.for_type_by_name(
        module, name, lambda shown, printer, _cycle: printer.text(repr(table(shown)))
    )
