"""The figures of each iteration as named series of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from workbench.timings.derive import columns
from workbench.timings.export.walk import chosen
from workbench.timings.store import PHASES, Rows

if TYPE_CHECKING:
    from workbench.timings.export.door import Exports

_TIMES = ("iteration", *PHASES, "communication", "wait")
_AS_THEY_ARE = ("algbw_gbps", "busbw_gbps", "overlap", "bytes")


class Series(NamedTuple):
    """The scalars of one rank, or of the mean of all, a step per iteration.

    Attributes
    ----------
    name
        ``"mean"``, or such as ``"rank0"``.
    steps
        Iteration numbers.
    ends_s
        When each ended, in seconds before the end of the last one; 0 or less.
    scalars
        Values by name, such as ``"exposed_ms"``; NaN where not known.
    """

    name: str
    steps: npt.NDArray[np.int64]
    ends_s: npt.NDArray[np.float64]
    scalars: dict[str, npt.NDArray[np.float64]]


def series(run: Exports, per_rank: bool) -> Iterator[Series]:
    """Give the mean over ranks, and then each rank where that is asked for.

    Raises
    ------
    UsageError
        There is no iteration.
    """
    rows = chosen(run, None)
    table = columns(rows)
    scalars = {f"{name}_ms": table[f"{name}_us"] / 1e3 for name in _TIMES}
    scalars |= {name: table[name].astype(np.float64) for name in _AS_THEY_ARE}
    steps, first, place = np.unique(rows["iteration"], return_index=True, return_inverse=True)
    means = {name: _means(values, place, len(steps)) for name, values in scalars.items()}
    yield Series("mean", steps, _ends_s(rows)[first], means)
    if per_rank:
        ends = _ends_s(rows)
        for rank in np.unique(rows["rank"]).tolist():
            own = rows["rank"] == rank
            given = {name: values[own] for name, values in scalars.items()}
            yield Series(f"rank{rank}", rows["iteration"][own], ends[own], given)


def _means(
    values: npt.NDArray[np.float64], place: npt.NDArray[np.int64], count: int
) -> npt.NDArray[np.float64]:
    """Return the mean of what is known at each place."""
    known = ~np.isnan(values)
    sums = np.bincount(place[known], values[known], count)
    counts = np.bincount(place[known], minlength=count)
    means: npt.NDArray[np.float64] = np.full(count, np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return means


def _ends_s(rows: Rows) -> npt.NDArray[np.float64]:
    """Return each row's end against the last of its rank: each rank by its own clock."""
    ends = rows["start_ns"] + rows["iteration_ns"]
    ranks, place = np.unique(rows["rank"], return_inverse=True)
    last = np.full(len(ranks), np.iinfo(np.int64).min)
    np.maximum.at(last, place, ends)
    since: npt.NDArray[np.float64] = (ends - last[place]) / 1e9
    return since
