"""The use of allocated GPUs by notebook, as tables."""

from __future__ import annotations

from typing import Any

from workbench.errors import UsageError
from workbench.resources.use import (
    BUSY_SHARE,
    IDLE_HEAD,
    NOTES,
    NOTHING,
    OFF,
    USE_HEAD,
    UseStore,
    idle_rows,
    is_on,
    use_rows,
)
from workbench.widgets.table import Table

DAYS = 7
"""Default number of days."""


def use_view(line: str, args: Any) -> UseView:
    """Return the view of ``%resources use``.

    Raises
    ------
    UsageError
        The line has ``--days`` without ``use``, or options of another view.
    """
    if args.file != "use" or args.write_topology:
        raise UsageError(
            f"%resources {line}: --days is for use, without other options. Write "
            f"%resources use --days {DAYS}."
        )
    return UseView(DAYS if args.days is None else args.days)


class UseView:
    """The use of GPUs by day and notebook, and idle allocations; `records` has the stored rows."""

    def __init__(self, days: int, store: UseStore | None = None) -> None:
        self.records = (store or UseStore()).read(days)
        off_notes = [] if is_on() else [OFF]
        rows = use_rows(self.records)
        period = "today" if days == 1 else f"the last {days} days"
        title = f"Use of allocated GPUs and CPU ranks, {period}:"
        notes = [*NOTES, *off_notes] if rows else [NOTHING, *off_notes]
        self._tables = [Table(title, USE_HEAD, rows, notes)]
        if idle := idle_rows(self.records):
            title = f"Idle allocations, of which less than {BUSY_SHARE:.0%} was used:"
            self._tables.append(Table(title, IDLE_HEAD, idle))

    def __repr__(self) -> str:
        return "\n\n".join(map(repr, self._tables))

    def _repr_html_(self) -> str:
        return "".join(table._repr_html_() for table in self._tables)
