"""Reading of a run one iteration at a time, with little memory."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from workbench.errors import UsageError
from workbench.timings.derive import bus_factor
from workbench.timings.source import TimingsSource
from workbench.timings.store import CollectiveRecord, Rows
from workbench.wire.record import TICK_NS, TIMES

_BATCH_ITERATIONS = 64
"""Number of iterations for which collectives are read in one call."""


class Collective(NamedTuple):
    """One collective of one rank, with times in nanoseconds since its iteration's start.

    Attributes
    ----------
    name
        Name of the collective.
    kind
        Such as ``"allreduce"``.
    ranks
        Number of ranks that ran the collective.
    size_bytes
        Size of its buffer.
    tensors
        Number of its tensors.
    library
        Name of the library that transferred it; empty if unknown.
    submitted_ns, finished_ns
        Submission, and the end after all copies.
    responded_ns
        Horovod's response; None if unknown.
    began_ns, ended_ns
        Start and end of the transfer; None if unknown.

    Examples
    --------
    >>> grads = Collective("g", "allreduce", 4, 1000, 1, "", 0, None, None, None, 2000)
    >>> grads.label, grads.algbw_gbps, grads.busbw_gbps
    ('allreduce g', 4.0, 6.0)
    """

    name: str
    kind: str
    ranks: int
    size_bytes: int
    tensors: int
    library: str
    submitted_ns: int
    responded_ns: int | None
    began_ns: int | None
    ended_ns: int | None
    finished_ns: int

    def untimed(self) -> Collective:
        """Return the collective without the times of the response and of the transfer."""
        return self._replace(responded_ns=None, began_ns=None, ended_ns=None)

    def parts_us(self) -> dict[str, float]:
        """Return the durations of queueing, copies and transfer; empty if they are unknown."""
        if self.responded_ns is None or self.began_ns is None or self.ended_ns is None:
            return {}
        times = (
            self.submitted_ns, self.responded_ns, self.began_ns, self.ended_ns, self.finished_ns
        )  # fmt: skip
        names = ("queued_us", "copy_in_us", "transfer_us", "copy_out_us")
        return {
            name: round((end - begin) / 1e3, 3)
            for name, (begin, end) in zip(names, itertools.pairwise(times), strict=True)
        }

    @property
    def label(self) -> str:
        """The kind and the name."""
        return f"{self.kind} {self.name}"

    @property
    def algbw_gbps(self) -> float | None:
        """Algorithm bandwidth over the time from submitted to finished, with queueing."""
        duration_ns = self.finished_ns - self.submitted_ns
        return self.size_bytes * 8 / duration_ns if duration_ns > 0 else None

    @property
    def busbw_gbps(self) -> float | None:
        """Bus bandwidth: `algbw_gbps` times `derive.bus_factor`."""
        if self.algbw_gbps is None:
            return None
        return self.algbw_gbps * bus_factor(self.kind, self.ranks)


class Iteration(NamedTuple):
    """One iteration.

    Attributes
    ----------
    row_range
        Positions of its rows among the rows that were passed to `iter_iterations`.
    rows
        Its rows in order of ranks.
    collectives
        Each rank's collectives in order of submission, by rank.
    """

    row_range: slice
    rows: Rows
    collectives: dict[int, list[Collective]]


def select_rows(run: TimingsSource, iterations: tuple[int, int] | None) -> Rows:
    """Return the rows of the iterations `first, last`, sorted by iteration and rank.

    Raises
    ------
    UsageError
        There is no such iteration, or `iterations` is not a pair of integers.
    """
    rows = run.rows()
    if not len(rows):
        raise UsageError("No iteration was recorded yet. Train in a %%distributed cell first.")
    first = int(rows["iteration"].min())
    last = int(rows["iteration"].max())
    if iterations is not None:
        start, stop = _pair(iterations)
        rows = rows[(rows["iteration"] >= start) & (rows["iteration"] <= stop)]
        if not len(rows):
            raise UsageError(
                f"iterations={start}, {stop}: the timings have none of these. "
                f"Choose from {first} to {last}."
            )
    return rows[np.lexsort((rows["rank"], rows["iteration"]))]


def _pair(iterations: tuple[int, int]) -> tuple[int, int]:
    try:
        start, stop = map(operator.index, iterations)
    except (TypeError, ValueError):
        raise UsageError(
            f"iterations={iterations!r}: must be a pair of integers. Give the first and the last "
            "iteration, such as (100, 120)."
        ) from None
    return start, stop


def iter_iterations(run: TimingsSource, rows: Rows) -> Iterator[Iteration]:
    """Yield the iterations of `rows`, which `select_rows` returned."""
    numbers, first = np.unique(rows["iteration"], return_index=True)
    ends = np.append(first[1:], len(rows))
    for start in range(0, len(numbers), _BATCH_ITERATIONS):
        batch = slice(start, start + _BATCH_ITERATIONS)
        by_iteration: dict[int, dict[int, list[Collective]]] = {}
        for record in run.records(int(numbers[batch][0]), int(numbers[batch][-1])):
            by_iteration.setdefault(record.iteration, {})[record.rank] = collectives(record)
        for number, begin, end in zip(numbers[batch], first[batch], ends[batch], strict=True):
            yield Iteration(slice(begin, end), rows[begin:end], by_iteration.get(int(number), {}))


def collectives(record: CollectiveRecord) -> list[Collective]:
    """Return a record's collectives in order of submission."""
    layout = record.layout
    columns = zip(
        layout.names, layout.kinds, layout.ranks, layout.sizes_bytes, layout.tensors,
        layout.libraries, *(_ns(getattr(record.record, name)) for name in TIMES),
        strict=True,
    )  # fmt: skip
    unordered = (Collective(*values) for values in columns)
    return sorted(
        (each if each.library else each.untimed() for each in unordered),
        key=lambda collective: collective.submitted_ns,
    )


def _ns(ticks: npt.ArrayLike) -> list[int]:
    nanoseconds: list[int] = (np.asarray(ticks, dtype=np.int64) * TICK_NS).tolist()
    return nanoseconds
