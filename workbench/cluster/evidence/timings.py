"""What a bundle has of a run's timings: the last iterations and collectives of each rank."""

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

LATEST = 100
"""Iterations of each rank."""
_BEHIND = 4
_COLLECTIVES_OF = 2
"""Iterations whose single collectives are added."""
_NOTHING = "no iteration was recorded (no optimizer.step() ran, or recording was off)"


def add_iterations(bundle: Bundle, timings: TimingsQueries) -> None:
    """Add the last iterations of each rank, without loading pandas."""
    rows = _latest(timings)
    if not len(rows):
        bundle.miss("iterations.csv", _NOTHING)
        return
    found = columns(rows)
    order = np.lexsort((rows["rank"], rows["iteration"]))
    lines = zip(*(column[order].tolist() for column in found.values()), strict=True)
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(["cell", *found])
    cells = rows["cell"][order].tolist()
    writer.writerows([cell, *map(_shown, line)] for cell, line in zip(cells, lines, strict=True))
    about = f"the last {LATEST} iterations of each rank; columns as timings.to_frame()"
    bundle.add("iterations.csv", file.getvalue(), about, numeric=True)


def add_collectives(bundle: Bundle, timings: TimingsQueries) -> None:
    """Add the single collectives of the last iterations."""
    rows = _latest(timings)
    if not len(rows):
        bundle.miss("collectives.csv", _NOTHING)
        return
    # ranks that are behind have later collectives in earlier iterations
    last = int(rows["iteration"].max())
    table = timings.collectives(max(0, last - _COLLECTIVES_OF + 1), last)
    text: str = table.to_csv(index=False)
    about = f"single collectives of the last {_COLLECTIVES_OF} iterations"
    bundle.add("collectives.csv", text, about)


def recorded_counts(timings: TimingsQueries) -> dict[int, dict[str, Any]]:
    """Return what each rank has recorded in the newest cell, by rank."""
    rows = timings.rows()
    rows = rows[rows["cell"] == rows["cell"].max(initial=0)]
    return {
        int(rank): {
            "cell": int(own["cell"].max()),
            "iterations": len(own),
            "last_iteration": int(own["iteration"].max()),
            "tensors": int(own["tensors"].sum()),
            "bytes": int(own["bytes"].sum()),
        }
        for rank in np.unique(rows["rank"])
        if len(own := rows[rows["rank"] == rank])
    }


def unknown_counts() -> dict[str, str]:
    """Return the plain value for a rank that is not in `recorded_counts`."""
    return {"unknown": Unknown(_NOTHING).reason}


def _latest(timings: TimingsQueries) -> Rows:
    """Return the last `LATEST` rows of each rank; a rank may be some behind the others."""
    count = len(timings)
    world = int(timings.rows(max(0, count - 1))["world_size"].max(initial=1))
    rows = timings.rows(max(0, count - _BEHIND * LATEST * world))
    parts = [rows[rows["rank"] == rank][-LATEST:] for rank in np.unique(rows["rank"])]
    return np.concatenate(parts) if parts else rows


def _shown(value: Any) -> Any:
    """Return a figure for CSV; an unknown one is empty."""
    if not isinstance(value, float):
        return value
    return "" if math.isnan(value) else f"{value:.6g}"
