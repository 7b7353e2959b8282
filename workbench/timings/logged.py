"""The values that cells log with their iterations, such as a loss; see `workbench.log`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from workbench.wire.logged_values import LoggedValues

VALUE = np.dtype([("iteration", "i8"), ("rank", "i4"), ("name", "i4"), ("value", "f8")])
"""A logged value; `name` is the index of its name among all names."""
MAX_VALUES = 1 << 20
"""Maximum number of values in memory (32 MB). Beyond it, the older half is deleted."""
MAX_NAMES = 64
"""Maximum number of names of all ranks together, because a table has a column for each name."""
_STORED = np.dtype(
    [("cell", "i8"), ("index", "i8"), ("rank", "i4"), ("name", "i4"), ("value", "f8")]
)
_WHOLE_RUN = -1
"""The `cell` of values with an `index` that counts the iterations of the whole run."""
_TAIL = 4096
"""Number of the last values that `LoggedStore.since` reads at first."""

Values = npt.NDArray[Any]


class LoggedTable(NamedTuple):
    """Logged values, in order of arrival.

    Attributes
    ----------
    names
        All names, in the order of their first values.
    values
        An array of the type `VALUE`.

    Examples
    --------
    >>> values = np.array([(0, 0, 0, 0.5), (2, 0, 0, 0.25)], VALUE)
    >>> logged = LoggedTable(("loss",), values)
    >>> {name: c.tolist() for name, c in logged.columns(np.arange(3), np.zeros(3)).items()}
    {'loss': [0.5, nan, 0.25]}
    """

    names: tuple[str, ...] = ()
    values: Values = np.empty(0, VALUE)

    def columns(
        self, iterations: npt.NDArray[Any], ranks: npt.NDArray[Any]
    ) -> dict[str, npt.NDArray[np.float64]]:
        """Return the values of rows, with a column for each name; NaN where nothing was logged."""
        columns = {name: np.full(len(iterations), np.nan) for name in self.names}
        if not len(iterations) or not len(self.values):
            return columns
        keys = _keys(iterations, ranks)
        order = np.argsort(keys, kind="stable")
        value_keys = _keys(self.values["iteration"], self.values["rank"])
        position = np.minimum(np.searchsorted(keys[order], value_keys), len(keys) - 1)
        has_row = keys[order[position]] == value_keys
        for name_index, column in enumerate(columns.values()):
            is_selected = has_row & (self.values["name"] == name_index)
            # if an iteration has several values, the last one counts
            column[order[position[is_selected]]] = self.values["value"][is_selected]
        return columns


NOTHING = LoggedTable()


def add_columns(table: dict[str, Any], logged: LoggedTable) -> dict[str, Any]:
    """Return a table of iterations with the columns of `logged`, renamed if the table has them."""
    columns = logged.columns(table["iteration"], table["rank"])
    return table | {
        f"logged_{name}" if name in table else name: column for name, column in columns.items()
    }


def _keys(iterations: npt.NDArray[Any], ranks: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return one number for each pair of iteration and rank."""
    return np.asarray((iterations.astype(np.int64) << 32) + ranks.astype(np.int64))


class LoggedStore:
    """Logged values in memory, in order of arrival; thread-safe.

    The values arrive before the records of their iterations. The iterations of a cell have numbers
    only after the first record of the cell has arrived.

    Parameters
    ----------
    first_of_cell
        Returns the number of the first iteration of each cell.
    """

    def __init__(self, first_of_cell: Callable[[], Mapping[int, int]]) -> None:
        self._first_of_cell = first_of_cell
        self._lock = threading.Lock()
        self._names: dict[str, int] = {}
        self._values = np.empty(1024, _STORED)
        self._count = 0
        self._deleted = 0
        self._refused: dict[str, None] = {}

    @property
    def total(self) -> int:
        """Number of values that were added, including values that are no longer in memory."""
        with self._lock:
            return self._deleted + self._count

    @property
    def refused(self) -> tuple[str, ...]:
        """The first names that exceeded `MAX_NAMES`, so that their values are not kept."""
        return tuple(self._refused)

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in the order of their first values."""
        return tuple(self._names)

    def add(self, rank: int, logged: LoggedValues) -> None:
        """Append the values that a rank has sent."""
        with self._lock:
            numbers = [self._number(name) for name in logged.names]
            columns = zip(logged.iterations, numbers, logged.values, strict=True)
            self._append(
                [(logged.cell, index, rank, number, value) for index, number, value in columns]
            )

    def restore(self, logged: LoggedTable) -> None:
        """Append the values that an earlier kernel has stored."""
        with self._lock:
            numbers = [self._number(name) for name in logged.names]
            self._append(
                [
                    (_WHOLE_RUN, iteration, rank, numbers[name], value)
                    for iteration, rank, name, value in logged.values.tolist()
                ]
            )

    def _number(self, name: str) -> int:
        """Return the number of a name; -1 if there are too many names."""
        if name not in self._names and len(self._names) >= MAX_NAMES:
            if len(self._refused) < MAX_NAMES:
                self._refused.setdefault(name)
            return -1
        return self._names.setdefault(name, len(self._names))

    def _append(self, rows: list[tuple[Any, ...]]) -> None:
        new = np.array([row for row in rows if row[3] >= 0], _STORED)
        if (
            discarded := len(new) - MAX_VALUES // 2
        ) > 0:  # then all earlier values are deleted, too
            new = new[discarded:]
            self._deleted += self._count + discarded
            self._count = 0
        if self._count + len(new) > MAX_VALUES:
            half = self._count // 2
            self._values[: self._count - half] = self._values[half : self._count].copy()
            self._count -= half
            self._deleted += half
        if (end := self._count + len(new)) > len(self._values):
            self._values = np.concatenate([self._values, np.empty(end, _STORED)])
        self._values[self._count : end] = new
        self._count = end

    def read(self, start: int = 0, max_values: int | None = None) -> tuple[int, LoggedTable]:
        """Return the end index, and the values from `start` on that have known iterations.

        Parameters
        ----------
        start
            Counted from the first value that was added.
        max_values
            Maximum number of values to read; all by default.
        """
        first_of_cell = self._first_of_cell()
        with self._lock:
            begin = max(start, self._deleted)
            first = begin - self._deleted
            end = self._count if max_values is None else min(first + max_values, self._count)
            rows = self._values[first:end].copy()
            names = tuple(self._names)
        of_unknown_cells = np.flatnonzero(rows["cell"] > max(first_of_cell, default=_WHOLE_RUN))
        rows = rows[: of_unknown_cells[0]] if len(of_unknown_cells) else rows
        return begin + len(rows), LoggedTable(names, _numbered(rows, first_of_cell))

    def since(self, iteration: int) -> LoggedTable:
        """Return the values of `iteration` and later iterations; few earlier values are read."""
        size = _TAIL
        while True:
            _, logged = self.read(self._deleted + self._count - size)
            values = logged.values
            if size >= self._count or values["iteration"].min(initial=iteration) < iteration:
                return LoggedTable(logged.names, values[values["iteration"] >= iteration])
            size *= 4


def _numbered(rows: Values, first_of_cell: Mapping[int, int]) -> Values:
    """Return stored rows with the numbers of their iterations, without rows of unknown cells."""
    cells, cell_index = np.unique(rows["cell"], return_inverse=True)
    first_iterations = {_WHOLE_RUN: 0, **first_of_cell}
    first = np.array([first_iterations.get(cell, -1) for cell in cells.tolist()], np.int64)
    first = first[cell_index]
    values = np.empty(len(rows), VALUE)
    for name in ("rank", "name", "value"):
        values[name] = rows[name]
    values["iteration"] = rows["index"] + first
    return values[first >= 0]
