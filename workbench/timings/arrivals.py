"""When each rank had handed over its gradients, beside the rows of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from workbench.timings.cell_clocks import CellClocks
from workbench.timings.store import ROW, Rows
from workbench.wire import Flag, IterationRecord
from workbench.wire.record import TICK_NS

if TYPE_CHECKING:
    import pandas as pd

_MARKS = np.dtype([("first_ns", "i8"), ("last_ns", "i8"), ("done_ns", "i8")])
"""After the iteration's start: the first collective submitted, the last, and all finished."""

MARKED = np.dtype([*ROW.descr, *_MARKS.descr, ("offset_ns", "i8"), ("uncertainty_ns", "f8")])
"""A row with its marks (0 where not known), and its rank's clock when the last was submitted:
what is added to have the kernel's, and how far that may be off (infinite where not known)."""

LIMIT = 1 << 18
"""Rows whose marks are kept (8 MB)."""


class Marks:
    """The marks of the newest rows, by the rows' numbers.

    Parameters
    ----------
    limit
        Rows of which they are kept.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._numbers: npt.NDArray[np.int64] = np.full(limit, -1, dtype=np.int64)
        self._marks = np.zeros(limit, dtype=_MARKS)

    def add(self, number: int, record: IterationRecord) -> None:
        """Note the marks of the row that `record` becomes."""
        if not record.submitted or record.flags & Flag.OUTSIDE:
            return
        place = number % len(self._marks)
        # by numpy: a kernel does this for thousands of records a second
        submitted, finished = (
            np.frombuffer(ticks, np.uint32) for ticks in (record.submitted, record.finished)
        )
        ticks = submitted.min(), submitted.max(), finished.max()
        self._marks[place] = tuple(int(tick) * TICK_NS for tick in ticks)
        self._numbers[place] = number

    def join(self, first: int, rows: Rows, clocks: CellClocks) -> Rows:
        """Return `rows`, whose first is the `first`-th, as `MARKED`."""
        marked = np.zeros(len(rows), dtype=MARKED)
        for name in rows.dtype.names or ():
            marked[name] = rows[name]
        numbers = np.arange(first, first + len(rows))
        places = numbers % len(self._marks)
        known = self._numbers[places] == numbers
        for name in _MARKS.names or ():
            marked[name] = np.where(known, self._marks[name][places], 0)
        arrived = rows["start_ns"] + marked["last_ns"]
        times, uncertain = clocks.to_kernel(rows["cell"], rows["rank"], arrived)
        marked["offset_ns"], marked["uncertainty_ns"] = times - arrived, uncertain
        return marked


def table(rows: Rows) -> pd.DataFrame:
    """Return one row per iteration and rank of `MARKED` rows: when its gradients were ready.

    Columns: iteration, rank, first_us and last_us (its first and its last
    collective submitted), late_us (the last one, behind the rank that was
    first), all on the kernel's clock; and uncertainty_us of each. Times count
    from the first arrival of the whole table. NaN where the rank's clock is
    not known, or nothing was reduced.
    """
    import pandas as pd

    known = np.isfinite(rows["uncertainty_ns"]) & (rows["done_ns"] > 0)
    started = rows["start_ns"] + rows["offset_ns"]
    first, last = started + rows["first_ns"], started + rows["last_ns"]
    begin = first[known].min() if known.any() else 0
    _, place = np.unique(rows["iteration"], return_inverse=True)
    earliest = np.full(place.max() + 1 if len(place) else 0, np.iinfo(np.int64).max)
    np.minimum.at(earliest, place[known], last[known])
    figures = {
        "first_us": first - begin,
        "last_us": last - begin,
        "late_us": last - earliest[place],
        "uncertainty_us": rows["uncertainty_ns"],
    }
    frame = pd.DataFrame(
        {
            "iteration": rows["iteration"],
            "rank": rows["rank"],
            **{name: np.where(known, value / 1e3, np.nan) for name, value in figures.items()},
        }
    )
    return frame.sort_values(["iteration", "rank"], ignore_index=True)
