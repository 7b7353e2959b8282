"""Timings as pandas tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.timings.derive import bus_factor, columns
from workbench.timings.service import serve
from workbench.timings.store import CollectiveRecord, Rows, peers
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

    Columns: iteration (-1: in none), cell, rank, name, kind, by, process_set,
    ranks, bytes, tensors; submitted_us, unfinished_us, finished_us (after the
    iteration's start; it finished between the last two); duration_us from
    submitted to finished; and what `service` infers: buffer (collectives of an
    iteration with one number travelled together), service_us of that buffer,
    known to +- service_error_us, queued_us (the rest of the duration: earlier
    buffers, slower ranks, negotiation) and busbw_gbps of the buffer. NaN where
    not all ranks have reported, or none can be told.
    """
    import pandas as pd

    counts = [len(item.record.submitted) for item in records]
    times = {
        f"{name}_us": _flat([getattr(item.record, name) for item in records])
        for name in ("submitted", "unfinished", "finished")
    }
    buffer, service, error = (
        np.concatenate(parts) for parts in zip(*_served(records), strict=True)
    )
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
    frame["buffer"] = buffer
    frame["service_us"] = service
    frame["service_error_us"] = error
    frame["queued_us"] = (frame["duration_us"] - frame["service_us"]).clip(lower=0)
    together = frame.groupby(["cell", "iteration", "rank", "buffer"])["bytes"].transform("sum")
    factor = [bus_factor(kind, n) for kind, n in zip(frame["kind"], frame["ranks"], strict=True)]
    rate = together * 8 / 1e3 / frame["service_us"].where(frame["service_us"] > 0)
    frame["busbw_gbps"] = rate * np.asarray(factor)
    order = ["iteration", "rank", "submitted_us"]
    return frame.sort_values(order, ignore_index=True)


def _served(records: list[CollectiveRecord]) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return buffer, service time and its error in us for each record's collectives."""
    found = [_unserved(item) for item in records] or [(np.empty(0),) * 3]
    alike: dict[Any, list[int]] = {}
    for place, item in enumerate(records):
        if item.iteration >= 0:
            key = item.iteration, item.layout.names, item.layout.kinds, item.layout.process_sets
            alike.setdefault(key, []).append(place)
    for places in alike.values():
        first = records[places[0]]
        if len(places) != peers(first.layout, first.record.world_size)[1]:
            continue
        layout, shape = first.layout, (len(places), len(first.layout.names))
        submitted, unfinished, finished = (
            _flat([getattr(records[place].record, name) for place in places]).reshape(shape)
            for name in ("submitted", "unfinished", "finished")
        )
        sizes = np.array(layout.sizes_bytes, np.int64)
        served = serve(submitted, unfinished, finished, sizes, layout.kinds, layout.process_sets)
        for place in places:
            found[place] = served.buffer, served.service, served.error
    return found


def _unserved(item: CollectiveRecord) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    count = len(item.record.submitted)
    unknown = np.full(count, np.nan)
    return np.arange(count), unknown, unknown


def _flat(ticks: list[object]) -> np.ndarray:
    arrays = [np.asarray(column, dtype=np.float64) for column in ticks]
    joined: np.ndarray = np.concatenate(arrays) if arrays else np.empty(0)
    return joined * (TICK_NS / 1e3)
