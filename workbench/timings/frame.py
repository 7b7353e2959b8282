"""Timings as tables of pandas and Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from workbench.errors import UsageError
from workbench.timings.buffers import is_timed, number_buffers, service_times
from workbench.timings.derive import bus_factor, columns
from workbench.timings.groups import group_names
from workbench.timings.logged import NOTHING, Logged, add_columns
from workbench.timings.source import TimingsSource
from workbench.timings.store import CollectiveRecord, Rows, peers
from workbench.wire.record import TICK_NS, TIMES

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


_OF_LAYOUT = {
    "name": "names",
    "kind": "kinds",
    "by": "by",
    "library": "libraries",
    "process_set": "process_sets",
    "group": "groups",
    "peer": "peers",
    "ranks": "ranks",
    "bytes": "sizes_bytes",
    "tensors": "tensors",
}
_SPANS = {
    "queued": ("submitted", "responded"),
    "copy_in": ("responded", "began"),
    "transfer": ("began", "ended"),
    "copy_out": ("ended", "finished"),
    "duration": ("submitted", "finished"),
}
"""Parts of a collective, from one of its `TIMES` to another."""
_UNITS = {"_us": "microseconds", "_gbps": "10^9 bits per second"}


def iterations(rows: Rows, logged: Logged = NOTHING) -> pd.DataFrame:
    """Return the table of `TimingsQueries.to_frame`."""
    import pandas as pd

    frame = pd.DataFrame(add_columns(columns(rows), logged))
    return frame.sort_values(["iteration", "rank"], ignore_index=True)


def arrivals(rows: Rows) -> pd.DataFrame:
    """Return one row per iteration and rank: when its gradients were ready.

    Columns: iteration, rank; first_us and last_us, when it submitted its first and its last
    collective, counted from the first arrival in the table; late_us, the delay of the last
    one after the earliest rank; all on the kernel's clock, known to +- uncertainty_us. NaN if
    the rank's clock is unknown, or nothing was reduced.
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


def collectives(records: list[CollectiveRecord]) -> pd.DataFrame:
    """Return one row per iteration, rank and collective.

    Columns: iteration (-1 outside of iterations), cell, rank, name, kind, by, library (what
    transferred it, such as "GLOO_ALLREDUCE"; empty if unknown), process_set, ranks, bytes,
    tensors. group: the name that the user gave to its group of ranks, such as that of a dimension
    of a DeviceMesh; without one, the group's ranks; empty for all ranks. peer: the rank to which a
    send goes, or from which a receive comes; -1 if unknown, and for collectives.

    Times in us since the start of the iteration: submitted_us; responded_us, when all ranks
    had submitted it, and with NCCL the rank's GPU had computed it; began_us and ended_us of
    the transfer; finished_us. Between them: queued_us (until the response: slower ranks, earlier
    buffers, negotiation), copy_in_us, transfer_us, copy_out_us, and duration_us in total. If the
    library is unknown, only submitted_us, finished_us and duration_us are known. With NCCL and
    HOROVOD_ENABLE_ASYNC_COMPLETION=1 it is, and finished_us is when the GPU's work was queued.

    buffer: collectives of an iteration with the same number travelled together; service_us, the
    transfer of the buffer on the rank that waited least in it, and its busbw_gbps, NaN if not
    all ranks have reported. For DDP service_us is an upper bound.

    Of torch.distributed's point-to-point, reduce_scatter and functional collectives,
    finished_us is when the wait for them has ended, an upper bound.
    """
    import pandas as pd

    frame = pd.DataFrame(_descriptions(records))
    names = group_names(records)
    frame["group"] = frame["group"].where(frame["group"] != "", frame["process_set"].map(names))
    frame["group"] = frame["group"].fillna("")
    times = [_ticks(item) for item in records]
    every = np.hstack(times) if times else np.empty((len(TIMES), 0))
    timed = _joined([is_timed(item.layout) for item in records]).astype(bool)
    for name, column in zip(TIMES, every * (TICK_NS / 1e3), strict=True):
        known = timed | (name in {"submitted", "finished"})
        frame[f"{name}_us"] = np.where(known, column, np.nan)
    for name, (begin, end) in _SPANS.items():
        frame[f"{name}_us"] = frame[f"{end}_us"] - frame[f"{begin}_us"]
    frame["buffer"] = _joined(
        [number_buffers(own, item.layout) for own, item in zip(times, records, strict=True)]
    )
    frame["service_us"] = _joined(_services(records, times)) * (TICK_NS / 1e3)
    together = frame.groupby(["cell", "iteration", "rank", "buffer"])["bytes"].transform("sum")
    factor = [bus_factor(kind, n) for kind, n in zip(frame["kind"], frame["ranks"], strict=True)]
    rate = together * 8 / 1e3 / frame["service_us"].where(frame["service_us"] > 0)
    frame["busbw_gbps"] = rate * np.asarray(factor)
    order = ["iteration", "rank", "submitted_us"]
    return frame.sort_values(order, ignore_index=True)


def _descriptions(records: list[CollectiveRecord]) -> dict[str, Any]:
    """Return the columns that say which collective each row is."""
    counts = [len(item.record.submitted) for item in records]
    return {
        "iteration": np.repeat([item.iteration for item in records], counts),
        "cell": np.repeat([item.record.cell for item in records], counts),
        "rank": np.repeat([item.rank for item in records], counts),
        **{
            column: [value for item in records for value in getattr(item.layout, field)]
            for column, field in _OF_LAYOUT.items()
        },
    }


def arrow_table(run: TimingsSource, what: str) -> pa.Table:
    """Return the iterations or the collectives of `run`; see `TimingsQueries.to_arrow`."""
    import pyarrow as pa

    if what == "iterations":
        rows = run.rows()
        rows = rows[np.lexsort((rows["rank"], rows["iteration"]))]
        given: Any = add_columns(columns(rows), run.logged())
    elif what == "collectives":
        given = collectives(run.records())
    else:
        raise UsageError(f"to_arrow({what!r}): no such table. Write 'iterations' or 'collectives'.")
    # from_pandas makes NaN, an unknown figure, null
    arrays = [pa.array(given[name], from_pandas=True) for name in given]
    fields = [
        pa.field(name, array.type, metadata=_unit(name))
        for name, array in zip(given, arrays, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _unit(name: str) -> dict[str, str] | None:
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), None)
    if name == "bytes":
        unit = "bytes"
    return {"unit": unit} if unit else None


def _services(
    records: list[CollectiveRecord], times: list[npt.NDArray[np.int64]]
) -> list[npt.NDArray[np.float64]]:
    """Return the service times of each record's collectives; NaN where ranks are missing."""
    found = [np.full(own.shape[1], np.nan) for own in times]
    groups: dict[Any, list[int]] = {}
    for place, item in enumerate(records):
        if item.iteration >= 0:
            one = item.layout  # messages of two ranks may have the same name
            key = item.iteration, one.names, one.kinds, one.process_sets, one.peers
            groups.setdefault(key, []).append(place)
    for places in groups.values():
        first = records[places[0]]
        if len(places) == peers(first.layout, first.record.world_size)[1]:
            service = service_times(np.stack([times[place] for place in places]), first.layout)
            for place in places:
                found[place] = service
    return found


def _ticks(item: CollectiveRecord) -> npt.NDArray[np.int64]:
    """Return the times of a record's collectives, of shape (TIMES, collectives)."""
    return np.array([getattr(item.record, name) for name in TIMES], np.int64)


def _joined(parts: list[Any]) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0)
