"""When each rank had handed over its gradients, beside the rows of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from workbench.timings.cell_clocks import CellClocks
from workbench.timings.store import ROW, Rows

if TYPE_CHECKING:
    import pandas as pd

ALIGNED = np.dtype([*ROW.descr, ("offset_ns", "i8"), ("uncertainty_ns", "f8")])
"""A row with its rank's clock when the last collective was submitted: what is added to have
the kernel's, and how far that may be off (infinite where not known)."""


def align(rows: Rows, clocks: CellClocks) -> Rows:
    """Return rows of `store.ROW` as `ALIGNED`."""
    aligned = np.zeros(len(rows), dtype=ALIGNED)
    for name in ROW.names or ():
        aligned[name] = rows[name]
    arrived = rows["start_ns"] + rows["last_ns"]
    times, uncertain = clocks.to_kernel(rows["cell"], rows["rank"], arrived)
    aligned["offset_ns"], aligned["uncertainty_ns"] = times - arrived, uncertain
    return aligned


def table(rows: Rows) -> pd.DataFrame:
    """Return one row per iteration and rank of `ALIGNED` rows: when its gradients were ready.

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
