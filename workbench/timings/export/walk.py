"""A run iteration by iteration, with little of it in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from workbench.errors import UsageError
from workbench.timings.store import Rows

if TYPE_CHECKING:
    import pandas as pd

    from workbench.timings.export.door import Exports

_AT_ONCE = 64
"""Iterations whose collectives are a table at a time."""


class Collective(NamedTuple):
    """One collective of one rank; times in nanoseconds after its iteration's start.

    It finished between `unfinished_ns` and `finished_ns`; `ranks` took part, None
    where that is not known.
    """

    name: str
    kind: str
    ranks: int | None
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

    def busbw_gbps(self, world: int) -> float | None:
        """The same times 2(n-1)/n (nccl-tests); None where it is no allreduce over `world`."""
        if self.algbw_gbps is None or self.kind != "allreduce":
            return None
        n = max(1, self.ranks or world)
        return self.algbw_gbps * 2 * (n - 1) / n


class Iteration(NamedTuple):
    """One iteration: its raw rows in rank order, and collectives by rank in order of submission."""

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
        raise UsageError(
            "an export was asked for of timings without an iteration: train, then ask again"
        )
    first, last = int(rows["iteration"].min()), int(rows["iteration"].max())
    if iterations is not None:
        start, stop = iterations
        rows = rows[(rows["iteration"] >= start) & (rows["iteration"] <= stop)]
        if not len(rows):
            raise UsageError(
                f"iterations {start} to {stop} were asked for: there are {first} to {last}"
            )
    return rows[np.lexsort((rows["rank"], rows["iteration"]))]


def walk(run: Exports, rows: Rows) -> Iterator[Iteration]:
    """Go through `rows`, which `chosen` has ordered."""
    numbers, first = np.unique(rows["iteration"], return_index=True)
    ends = np.append(first[1:], len(rows))
    for at in range(0, len(numbers), _AT_ONCE):
        part = slice(at, at + _AT_ONCE)
        found = _by_place(run.collectives_between(int(numbers[part][0]), int(numbers[part][-1])))
        for number, begin, end in zip(numbers[part], first[part], ends[part], strict=True):
            yield Iteration(rows[begin:end], found.get(int(number), {}))


def _by_place(frame: pd.DataFrame) -> dict[int, dict[int, list[Collective]]]:
    """Return a table of collectives by iteration and rank."""
    found: dict[int, dict[int, list[Collective]]] = {}
    kinds = frame["kind"] if "kind" in frame else ["allreduce"] * len(frame)
    ranks = frame["ranks"].tolist() if "ranks" in frame else [None] * len(frame)
    times = [
        (frame[f"{name}_us"].to_numpy() * 1e3).round().astype(np.int64).tolist()
        for name in ("submitted", "unfinished", "finished")
    ]
    named = zip(
        frame["name"], kinds, ranks, frame["bytes"].tolist(), frame["tensors"].tolist(), *times,
        strict=True,
    )  # fmt: skip
    places = zip(frame["iteration"].tolist(), frame["rank"].tolist(), strict=True)
    for (iteration, rank), values in zip(places, named, strict=True):
        found.setdefault(iteration, {}).setdefault(rank, []).append(Collective(*values))
    return found
