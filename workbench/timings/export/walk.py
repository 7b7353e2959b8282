"""A run iteration by iteration, with little of it in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from workbench.errors import UsageError
from workbench.timings.derive import bus_factor
from workbench.timings.store import CollectiveRecord, Rows
from workbench.wire.record import TICK_NS

if TYPE_CHECKING:
    from workbench.timings.export.door import Exports

_AT_ONCE = 64
"""Iterations whose collectives are looked up together."""


class Collective(NamedTuple):
    """One collective of one rank; times in nanoseconds after its iteration's start.

    It finished between `unfinished_ns` and `finished_ns`; `ranks` took part.
    """

    name: str
    kind: str
    ranks: int
    size_bytes: int
    tensors: int
    submitted_ns: int
    unfinished_ns: int
    finished_ns: int

    @property
    def label(self) -> str:
        """What it does, and to what."""
        return f"{self.kind} {self.name}"

    @property
    def algbw_gbps(self) -> float | None:
        """Bytes over the time from submitted to finished, queueing included."""
        took = self.finished_ns - self.submitted_ns
        return self.size_bytes * 8 / took if took > 0 else None

    @property
    def busbw_gbps(self) -> float | None:
        """The same times its kind's factor; see `derive.bus_factor`."""
        if self.algbw_gbps is None:
            return None
        return self.algbw_gbps * bus_factor(self.kind, self.ranks)


class Iteration(NamedTuple):
    """One iteration: its raw rows in rank order, and collectives by rank in order of submission.

    `place` is that of its rows among those that are walked.
    """

    place: slice
    rows: Rows
    collectives: dict[int, list[Collective]]


def chosen(run: Exports, iterations: tuple[int, int] | None) -> Rows:
    """Return the rows of the iterations from the first to the last, ordered by both.

    Raises
    ------
    UsageError
        There are none.
    """
    rows = run.rows()
    if not len(rows):
        raise UsageError("No iteration was recorded yet. Train in a %%distributed cell first.")
    first, last = int(rows["iteration"].min()), int(rows["iteration"].max())
    if iterations is not None:
        start, stop = iterations
        rows = rows[(rows["iteration"] >= start) & (rows["iteration"] <= stop)]
        if not len(rows):
            raise UsageError(
                f"iterations={start}, {stop}: the timings hold none of these. "
                f"Choose from {first} to {last}."
            )
    return rows[np.lexsort((rows["rank"], rows["iteration"]))]


def walk(run: Exports, rows: Rows) -> Iterator[Iteration]:
    """Go through `rows`, which `chosen` has ordered."""
    numbers, first = np.unique(rows["iteration"], return_index=True)
    ends = np.append(first[1:], len(rows))
    for at in range(0, len(numbers), _AT_ONCE):
        part = slice(at, at + _AT_ONCE)
        found: dict[int, dict[int, list[Collective]]] = {}
        for record in run.records(int(numbers[part][0]), int(numbers[part][-1])):
            found.setdefault(record.iteration, {})[record.rank] = collectives(record)
        for number, begin, end in zip(numbers[part], first[part], ends[part], strict=True):
            yield Iteration(slice(begin, end), rows[begin:end], found.get(int(number), {}))


def collectives(record: CollectiveRecord) -> list[Collective]:
    """Return a record's collectives, in order of submission."""
    layout, times = record.layout, record.record
    columns = zip(
        layout.names, layout.kinds, layout.ranks, layout.sizes_bytes, layout.tensors,
        *(_ns(ticks) for ticks in (times.submitted, times.unfinished, times.finished)),
        strict=True,
    )  # fmt: skip
    return sorted((Collective(*values) for values in columns), key=lambda one: one.submitted_ns)


def _ns(ticks: npt.ArrayLike) -> list[int]:
    plain: list[int] = (np.asarray(ticks, dtype=np.int64) * TICK_NS).tolist()
    return plain
