"""The values that cells log with their iterations, such as a loss; see `workbench.log`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from workbench.wire.logged_values import LoggedValues

VALUE = np.dtype([("iteration", "i8"), ("rank", "i4"), ("name", "i4"), ("value", "f8")])
"""A logged value; `name` is the place of its name among all names."""
MAX_VALUES = 1 << 20
"""Values kept in memory (32 MB); the older half is deleted when this limit is reached."""
MAX_NAMES = 64
"""Most names of all ranks together, each of which a table has a column for."""
_STORED = np.dtype(
    [("cell", "i8"), ("index", "i8"), ("rank", "i4"), ("name", "i4"), ("value", "f8")]
)
_OF_RUN = -1
"""The cell of values whose index is the number of their iteration in the run."""
_TAIL = 4096

Values = npt.NDArray[Any]


class Logged(NamedTuple):
    """Logged values, in order of arrival.

    Attributes
    ----------
    names
        All names, in the order in which they were first logged.
    values
        Of the type `VALUE`.
    """

    names: tuple[str, ...] = ()
    values: Values = np.empty(0, VALUE)

    def columns(
        self, iterations: npt.NDArray[Any], ranks: npt.NDArray[Any]
    ) -> dict[str, npt.NDArray[np.float64]]:
        """Return the values of rows, a column for each name; NaN where none was logged."""
        found = {name: np.full(len(iterations), np.nan) for name in self.names}
        if not len(iterations) or not len(self.values):
            return found
        keys = _keys(iterations, ranks)
        order = np.argsort(keys, kind="stable")
        wanted = _keys(self.values["iteration"], self.values["rank"])
        place = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
        known = keys[order[place]] == wanted
        for number, column in enumerate(found.values()):
            own = known & (self.values["name"] == number)
            column[order[place[own]]] = self.values["value"][own]  # of several, the last counts
        return found


NOTHING = Logged()


def add_columns(table: dict[str, Any], logged: Logged) -> dict[str, Any]:
    """Return a table of iterations with the columns of `logged`, whose names may be changed."""
    columns = logged.columns(table["iteration"], table["rank"])
    return table | {
        f"logged_{name}" if name in table else name: column for name, column in columns.items()
    }


def _keys(iterations: npt.NDArray[Any], ranks: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return np.asarray((iterations.astype(np.int64) << 32) + ranks.astype(np.int64))


class LoggedStore:
    """Logged values in memory, in order of arrival; thread-safe.

    They arrive before the records of their iterations: the iterations of a cell have numbers when
    its first record has arrived.

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
        self._forgotten = 0
        self._refused: dict[str, None] = {}

    @property
    def total(self) -> int:
        """Number of values that were added, with those that memory no longer has."""
        with self._lock:
            return self._forgotten + self._count

    @property
    def refused(self) -> tuple[str, ...]:
        """Names whose values are not kept, because there are too many names; the first ones."""
        return tuple(self._refused)

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in the order in which they were first logged."""
        return tuple(self._names)

    def add(self, rank: int, logged: LoggedValues) -> None:
        """Append what a rank has sent."""
        with self._lock:
            numbers = [self._number(name) for name in logged.names]
            columns = zip(logged.iterations, numbers, logged.values, strict=True)
            self._append([(logged.cell, index, rank, *one) for index, *one in columns])

    def restore(self, logged: Logged) -> None:
        """Append what an earlier kernel has stored."""
        with self._lock:
            numbers = [self._number(name) for name in logged.names]
            self._append(
                [
                    (_OF_RUN, iteration, rank, numbers[name], value)
                    for iteration, rank, name, value in logged.values.tolist()
                ]
            )

    def _number(self, name: str) -> int:
        """Return the number of a name; -1 if there are too many."""
        if name not in self._names and len(self._names) >= MAX_NAMES:
            if len(self._refused) < MAX_NAMES:
                self._refused.setdefault(name)
            return -1
        return self._names.setdefault(name, len(self._names))

    def _append(self, rows: list[tuple[Any, ...]]) -> None:
        new = np.array([row for row in rows if row[3] >= 0], _STORED)
        if (discarded := len(new) - MAX_VALUES // 2) > 0:  # with all earlier ones
            new = new[discarded:]
            self._forgotten += self._count + discarded
            self._count = 0
        if self._count + len(new) > MAX_VALUES:
            half = self._count // 2
            self._values[: self._count - half] = self._values[half : self._count].copy()
            self._count -= half
            self._forgotten += half
        if (end := self._count + len(new)) > len(self._values):
            self._values = np.concatenate([self._values, np.empty(end, _STORED)])
        self._values[self._count : end] = new
        self._count = end

    def read(self, start: int = 0, most: int | None = None) -> tuple[int, Logged]:
        """Return the values from index `start` on whose iteration is known, after the last index.

        Parameters
        ----------
        start
            Counted from the first value that was added.
        most
            Most values to read; all by default.
        """
        first_of_cell = self._first_of_cell()
        with self._lock:
            begin = max(start, self._forgotten)
            first = begin - self._forgotten
            end = self._count if most is None else min(first + most, self._count)
            rows = self._values[first:end].copy()
            names = tuple(self._names)
        later = np.flatnonzero(rows["cell"] > max(first_of_cell, default=_OF_RUN))
        rows = rows[: later[0]] if len(later) else rows
        return begin + len(rows), Logged(names, _numbered(rows, first_of_cell))

    def since(self, iteration: int) -> Logged:
        """Return the values of `iteration` and later ones; reads little more than these."""
        size = _TAIL
        while True:
            _, logged = self.read(self._forgotten + self._count - size)
            values = logged.values
            if size >= self._count or values["iteration"].min(initial=iteration) < iteration:
                return Logged(logged.names, values[values["iteration"] >= iteration])
            size *= 4


def _numbered(rows: Values, first_of_cell: Mapping[int, int]) -> Values:
    """Return stored rows with the numbers of their iterations, without those of unknown cells."""
    cells, place = np.unique(rows["cell"], return_inverse=True)
    before = {_OF_RUN: 0, **first_of_cell}
    first = np.array([before.get(cell, -1) for cell in cells.tolist()], np.int64)[place]
    values = np.empty(len(rows), VALUE)
    for name in ("rank", "name", "value"):
        values[name] = rows[name]
    values["iteration"] = rows["index"] + first
    return values[first >= 0]
