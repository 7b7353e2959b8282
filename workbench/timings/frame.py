"""Timings as pandas tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from workbench.timings.derive import columns
from workbench.timings.store import CollectiveRecord, Rows
from workbench.wire.record import TICK_NS

if TYPE_CHECKING:
    import pandas as pd


_OF_LAYOUT = {
    "name": "names",
    "kind": "kinds",
    "by": "by",
    "process_set": "process_sets",
    "ranks": "ranks",
    "bytes": "sizes_bytes",
    "tensors": "tensors",
}


def iterations(rows: Rows) -> pd.DataFrame:
    """Return one row per iteration and rank, ordered by both."""
    import pandas as pd

    frame = pd.DataFrame(columns(rows))
    return frame.sort_values(["iteration", "rank"], ignore_index=True)


def collectives(records: list[CollectiveRecord]) -> pd.DataFrame:
    """Return one row per iteration, rank and collective.

    Columns: iteration (-1: in none), cell, rank, name, kind, by, process_set, ranks,
    bytes, tensors, submitted_us, unfinished_us, finished_us (after the
    iteration's start; it finished between the last two), and duration_us from
    submitted to finished.
    """
    import pandas as pd

    counts = [len(item.record.submitted) for item in records]
    times = {
        f"{name}_us": _flat([getattr(item.record, name) for item in records])
        for name in ("submitted", "unfinished", "finished")
    }
    frame = pd.DataFrame(
        {
            "iteration": np.repeat([item.iteration for item in records], counts),
            "cell": np.repeat([item.record.cell for item in records], counts),
            "rank": np.repeat([item.rank for item in records], counts),
            **{
                column: [value for item in records for value in getattr(item.layout, field)]
                for column, field in _OF_LAYOUT.items()
            },
            **times,
        }
    )
    frame["duration_us"] = frame["finished_us"] - frame["submitted_us"]
    order = ["iteration", "rank", "submitted_us"]
    return frame.sort_values(order, ignore_index=True)


def _flat(ticks: list[object]) -> np.ndarray:
    arrays = [np.asarray(column, dtype=np.float64) for column in ticks]
    joined: np.ndarray = np.concatenate(arrays) if arrays else np.empty(0)
    return joined * (TICK_NS / 1e3)
