"""What a cell logs with its iterations, until it is sent.

The training thread only keeps the values: the sender's thread reads those that a GPU computes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from workbench.errors import UsageError
from workbench.wire.logged_values import LoggedValues

MOST_NAMES = 8
"""Most different names that a rank may log."""
_LIMIT = 10_000
"""Most calls that wait for the sender; the oldest is dropped."""


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
    """What one call has logged; `event` is done when a GPU has computed the values."""

    cell: int
    mark: Mark
    values: dict[str, Any]
    event: Any


class Logged:
    """The values that were logged and not sent."""

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque(maxlen=_LIMIT)
        self._names: set[str] = set()

    def add(self, cell: int, mark: Mark, values: Mapping[str, Any]) -> None:
        """Keep values of an iteration; tensors on a GPU are copied and read later.

        Raises
        ------
        UsageError
            There are more than `MOST_NAMES` names.
        """
        if not values.keys() <= self._names:
            if len(names := self._names | values.keys()) > MOST_NAMES:
                raise UsageError(
                    f"log({', '.join(map('{}=...'.format, values))}): {len(names)} different names "
                    f"would be logged, and the limit is {MOST_NAMES}. Log fewer names."
                )
            self._names = names
        kept, event = {}, None
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                # a copy, because a CUDA graph writes its loss into the same tensor again
                kept[name] = value.detach().clone()
                event = torch.cuda.Event()
            else:
                kept[name] = value
        if event is not None:
            event.record()
        self._entries.append(_Entry(cell, mark, kept, event))

    def clear(self) -> None:
        """Forget what belongs to no iteration: its cell has ended."""
        self._entries.clear()

    @property
    def waiting(self) -> bool:
        """Whether a GPU still computes values of iterations that have ended."""
        return bool(self._entries) and self._entries[0].mark.index >= 0

    def take(self) -> list[LoggedValues]:
        """Remove and return what can be sent, as a message for each cell."""
        columns: dict[int, list[tuple[int, str, float]]] = {}
        while self._entries:
            cell, mark, values, event = self._entries[0]
            if mark.index < 0 or not (event is None or event.query()):
                break
            self._entries.popleft()
            rows = columns.setdefault(cell, [])
            rows += [(mark.index, name, float(value)) for name, value in values.items()]
        return [
            LoggedValues(cell, *map(tuple, zip(*rows, strict=True)))
            for cell, rows in columns.items()
        ]
