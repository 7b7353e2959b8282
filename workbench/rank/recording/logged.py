"""What a cell logs with its iterations, until it is sent.

The training thread only keeps the values: the sender's thread reads those that a GPU computes.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from workbench.errors import UsageError
from workbench.wire.logged_values import LoggedValues

MAX_NAMES = 8
"""Maximum number of different names that a rank may log in a cell."""
_LIMIT = 10_000
"""Maximum number of calls that wait for the sender; the oldest is dropped."""


class Mark:
    """An iteration that may not have ended: its number in the cell is set when it has.

    Attributes
    ----------
    index
        The number, or -1 before the iteration ends.
    """

    __slots__ = ("index",)

    def __init__(self) -> None:
        self.index = -1


class _Entry(NamedTuple):
    """The values of one call; `event` is done when a GPU has computed them."""

    cell: int
    mark: Mark
    values: dict[str, Any]
    event: Any


class LoggedQueue:
    """Logged values that were not sent yet."""

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque(maxlen=_LIMIT)
        self._names: set[str] = set()
        self._lock = threading.Lock()
        """Guards the entries, because the sender's thread removes them."""

    def add(self, cell: int, mark: Mark, values: Mapping[str, Any]) -> None:
        """Keep values of an iteration; tensors on a GPU are copied and read later.

        Raises
        ------
        UsageError
            There are more than `MAX_NAMES` names.
        """
        if not values.keys() <= self._names:
            if len(names := self._names | values.keys()) > MAX_NAMES:
                raise UsageError(
                    f"log({', '.join(map('{}=...'.format, values))}): {len(names)} different names "
                    f"would be logged, and the limit is {MAX_NAMES}. Log fewer names."
                )
            self._names = names
        kept = {}
        event = None
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                # a copy, because a CUDA graph writes its loss into the same tensor again
                kept[name] = value.detach().clone()
                event = torch.cuda.Event()
            else:
                kept[name] = value
        if event is not None:
            event.record()
        with self._lock:
            self._entries.append(_Entry(cell, mark, kept, event))

    def clear(self) -> None:
        """Discard values without an iteration and the names, because their cell has ended."""
        with self._lock:
            self._entries.clear()
        self._names = set()

    @property
    def waiting(self) -> bool:
        """Whether a GPU still computes values of iterations that have ended."""
        first = self._first()
        return first is not None and first.mark.index >= 0

    def take(self) -> list[LoggedValues]:
        """Remove and return the values that can be sent, as one message per cell.

        Values that cannot be read, for example after an error of CUDA, are NaN.
        """
        columns: dict[int, list[tuple[int, str, float]]] = {}
        while (entry := self._first()) is not None:
            if entry.mark.index < 0 or not _is_ready(entry):
                break
            if not self._remove(entry):  # the training thread has dropped the entry since
                continue
            rows = columns.setdefault(entry.cell, [])
            for name, value in entry.values.items():
                rows.append((entry.mark.index, name, _number(value)))
        return [
            LoggedValues(cell, *map(tuple, zip(*rows, strict=True)))
            for cell, rows in columns.items()
        ]

    def _first(self) -> _Entry | None:
        with self._lock:
            return self._entries[0] if self._entries else None

    def _remove(self, entry: _Entry) -> bool:
        """Remove the first entry if it is `entry`; return whether it was."""
        with self._lock:
            is_first = bool(self._entries) and self._entries[0] is entry
            if is_first:
                self._entries.popleft()
            return is_first


def _is_ready(entry: _Entry) -> bool:
    """Return whether the values can be read now, or can never be read."""
    try:
        return entry.event is None or bool(entry.event.query())
    except RuntimeError:  # of CUDA
        return True


def _number(value: Any) -> float:
    try:
        return float(value)
    except (RuntimeError, TypeError, ValueError, OverflowError):
        return math.nan
