"""Add timings to a bundle: the last iterations and collectives of each rank."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

import numpy as np

from workbench.cluster.evidence.bundle import Bundle
from workbench.resources.unknown import Unknown
from workbench.timings.derive import columns
from workbench.timings.queries import TimingsQueries
from workbench.timings.store import Rows

MAX_ITERATIONS = 100
"""The newest iterations of each rank that a bundle contains."""
_LAG_FACTOR = 4
"""Search this many times `MAX_ITERATIONS` rows per rank, because some ranks may lag behind."""
_COLLECTIVES_OF_ITERATIONS = 2
"""The number of newest iterations for which each collective is listed."""
_NOTHING_RECORDED = "no iteration was recorded (no optimizer.step() ran, or recording was off)"


def add_iterations(bundle: Bundle, timings: TimingsQueries) -> None:
    """Add a table of the last iterations of each rank, without loading pandas."""
    rows = _latest(timings)
    if not len(rows):
        bundle.mark_missing("iterations.csv", _NOTHING_RECORDED)
        return
    named_columns = columns(rows)
    order = np.lexsort((rows["rank"], rows["iteration"]))
    lines = zip(*(column[order].tolist() for column in named_columns.values()), strict=True)
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(["cell", *named_columns])
    cells = rows["cell"][order].tolist()
    writer.writerows(
        [cell, *map(_csv_value, line)] for cell, line in zip(cells, lines, strict=True)
    )
    description = (
        f"the last {MAX_ITERATIONS} iterations of each rank; columns as timings.to_frame()"
    )
    bundle.add("iterations.csv", file.getvalue(), description, numeric=True)


def add_collectives(bundle: Bundle, timings: TimingsQueries) -> None:
    """Add a table with each collective of the last iterations."""
    rows = _latest(timings)
    if not len(rows):
        bundle.mark_missing("collectives.csv", _NOTHING_RECORDED)
        return
    # A rank that lags behind has its newest collectives in earlier iterations.
    last = int(rows["iteration"].max())
    table = timings.collectives(max(0, last - _COLLECTIVES_OF_ITERATIONS + 1), last)
    text: str = table.to_csv(index=False)
    description = f"single collectives of the last {_COLLECTIVES_OF_ITERATIONS} iterations"
    bundle.add("collectives.csv", text, description)


def recorded_counts(timings: TimingsQueries) -> dict[int, dict[str, Any]]:
    """Return the number of iterations, tensors and bytes of the newest cell, by rank."""
    rows = timings.rows()
    rows = rows[rows["cell"] == rows["cell"].max(initial=0)]
    return {
        int(rank): {
            "cell": int(rank_rows["cell"].max()),
            "iterations": len(rank_rows),
            "last_iteration": int(rank_rows["iteration"].max()),
            "tensors": int(rank_rows["tensors"].sum()),
            "bytes": int(rank_rows["bytes"].sum()),
        }
        for rank in np.unique(rows["rank"])
        if len(rank_rows := rows[rows["rank"] == rank])
    }


def unknown_counts() -> dict[str, str]:
    """Return the JSON value for a rank that is not in `recorded_counts`."""
    return {"unknown": Unknown(_NOTHING_RECORDED).reason}


def _latest(timings: TimingsQueries) -> Rows:
    """Return the last `MAX_ITERATIONS` rows of each rank. A rank may lag behind the others."""
    count = len(timings)
    world = int(timings.rows(max(0, count - 1))["world_size"].max(initial=1))
    rows = timings.rows(max(0, count - _LAG_FACTOR * MAX_ITERATIONS * world))
    parts = [rows[rows["rank"] == rank][-MAX_ITERATIONS:] for rank in np.unique(rows["rank"])]
    return np.concatenate(parts) if parts else rows


def _csv_value(value: Any) -> Any:
    """Format a number for CSV; NaN, which means unknown, becomes an empty field.

    Examples
    --------
    >>> _csv_value(1234.56789), _csv_value(float("nan")), _csv_value(3)
    ('1234.57', '', 3)
    """
    if not isinstance(value, float):
        return value
    return "" if math.isnan(value) else f"{value:.6g}"
