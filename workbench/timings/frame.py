"""Timings as tables for pandas and Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from workbench.errors import UsageError
from workbench.timings.buffers import is_timed, number_buffers, service_times
from workbench.timings.derive import bus_factor, columns
from workbench.timings.groups import group_names
from workbench.timings.logged import NOTHING, LoggedTable, add_columns
from workbench.timings.source import TimingsSource
from workbench.timings.store import CollectiveRecord, Rows, peers
from workbench.wire.record import TICK_NS, TIMES

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


_LAYOUT_FIELDS = {
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
"""The columns that are fields of `Layout`, and the names of these fields."""
_SPANS = {
    "queued": ("submitted", "responded"),
    "copy_in": ("responded", "began"),
    "transfer": ("began", "ended"),
    "copy_out": ("ended", "finished"),
    "duration": ("submitted", "finished"),
}
"""Parts of a collective's duration, each with the two of its `TIMES` where it begins and ends."""
_UNITS = {"_us": "microseconds", "_gbps": "10^9 bits per second"}
"""Units of columns, by the ending of their name."""


def iterations(rows: Rows, logged: LoggedTable = NOTHING) -> pd.DataFrame:
    """Return the table of `TimingsQueries.to_frame`."""
    import pandas as pd

    frame = pd.DataFrame(add_columns(columns(rows), logged))
    return frame.sort_values(["iteration", "rank"], ignore_index=True)


def arrivals(rows: Rows) -> pd.DataFrame:
    """Return one row per iteration and rank: when the rank's gradients were ready.

    Columns: iteration, rank; first_us and last_us, the times at which the rank submitted its first
    and its last collective, since the first submission in the table; late_us, how much later
    it submitted the last collective than the earliest rank did; uncertainty_us. The times are on
    the kernel's clock, and accurate to +- uncertainty_us. They are NaN if the rank's clock is
    unknown, or nothing was reduced.
    """
    import pandas as pd

    is_known = np.isfinite(rows["uncertainty_ns"]) & (rows["done_ns"] > 0)
    start_ns = rows["start_ns"] + rows["offset_ns"]
    first_ns = start_ns + rows["first_ns"]
    last_ns = start_ns + rows["last_ns"]
    begin_ns = first_ns[is_known].min() if is_known.any() else 0
    _, group = np.unique(rows["iteration"], return_inverse=True)
    earliest_ns = np.full(group.max() + 1 if len(group) else 0, np.iinfo(np.int64).max)
    np.minimum.at(earliest_ns, group[is_known], last_ns[is_known])
    figures = {
        "first_us": first_ns - begin_ns,
        "last_us": last_ns - begin_ns,
        "late_us": last_ns - earliest_ns[group],
        "uncertainty_us": rows["uncertainty_ns"],
    }
    frame = pd.DataFrame(
        {
            "iteration": rows["iteration"],
            "rank": rows["rank"],
            **{name: np.where(is_known, value / 1e3, np.nan) for name, value in figures.items()},
        }
    )
    return frame.sort_values(["iteration", "rank"], ignore_index=True)


def collectives(records: list[CollectiveRecord]) -> pd.DataFrame:
    """Return one row per iteration, rank and collective.

    Columns: iteration (-1 outside of iterations), cell, rank, name, kind, by, library (which
    transferred the collective, such as "GLOO_ALLREDUCE"; empty if unknown), process_set, ranks,
    bytes, tensors. group: the name that the user gave to the group of ranks, for example to a
    dimension of a DeviceMesh; a group without a name shows its ranks, and the group of all ranks is
    empty. peer: the rank that receives a send, or that sent what is received; -1 if unknown, and
    for collectives.

    Times in us since the start of the iteration: submitted_us; responded_us, when all ranks
    had submitted the collective, and with NCCL the rank's GPU had computed it; began_us and
    ended_us of the transfer; finished_us. Durations between them: queued_us (until the response:
    slower ranks, earlier buffers, negotiation), copy_in_us, transfer_us, copy_out_us, and
    duration_us in total. If the library is unknown, only submitted_us, finished_us and duration_us
    are known. With NCCL and HOROVOD_ENABLE_ASYNC_COMPLETION=1 the library is unknown, and
    finished_us is when the GPU's work was queued.

    buffer: collectives of an iteration with the same number travelled together. service_us is the
    duration of the buffer's transfer on the rank that waited least in it, and busbw_gbps the
    bandwidth; both are NaN if not all ranks have reported. For DDP, service_us is an upper bound.

    For point-to-point, reduce_scatter and functional collectives of torch.distributed, finished_us
    is an upper bound: the end of the wait for them.
    """
    import pandas as pd

    frame = pd.DataFrame(_descriptions(records))
    names = group_names(records)
    frame["group"] = frame["group"].where(frame["group"] != "", frame["process_set"].map(names))
    frame["group"] = frame["group"].fillna("")
    times = [_ticks(record) for record in records]
    all_times = np.hstack(times) if times else np.empty((len(TIMES), 0))
    timed = _joined([is_timed(record.layout) for record in records]).astype(bool)
    for name, column in zip(TIMES, all_times * (TICK_NS / 1e3), strict=True):
        is_known = timed | (name in {"submitted", "finished"})
        frame[f"{name}_us"] = np.where(is_known, column, np.nan)
    for name, (begin, end) in _SPANS.items():
        frame[f"{name}_us"] = frame[f"{end}_us"] - frame[f"{begin}_us"]
    frame["buffer"] = _joined(
        [
            number_buffers(record_times, record.layout)
            for record_times, record in zip(times, records, strict=True)
        ]
    )
    frame["service_us"] = _joined(_services(records, times)) * (TICK_NS / 1e3)
    buffer_bytes = frame.groupby(["cell", "iteration", "rank", "buffer"])["bytes"].transform("sum")
    bus_factors = [
        bus_factor(kind, n) for kind, n in zip(frame["kind"], frame["ranks"], strict=True)
    ]
    algbw_gbps = buffer_bytes * 8 / 1e3 / frame["service_us"].where(frame["service_us"] > 0)
    frame["busbw_gbps"] = algbw_gbps * np.asarray(bus_factors)
    order = ["iteration", "rank", "submitted_us"]
    return frame.sort_values(order, ignore_index=True)


def _descriptions(records: list[CollectiveRecord]) -> dict[str, Any]:
    """Return the columns that identify the collective of each row."""
    counts = [len(record.record.submitted) for record in records]
    return {
        "iteration": np.repeat([record.iteration for record in records], counts),
        "cell": np.repeat([record.record.cell for record in records], counts),
        "rank": np.repeat([record.rank for record in records], counts),
        **{
            column: [value for record in records for value in getattr(record.layout, field)]
            for column, field in _LAYOUT_FIELDS.items()
        },
    }


def arrow_table(run: TimingsSource, table_name: str) -> pa.Table:
    """Return the iterations or the collectives of `run`; see `TimingsQueries.to_arrow`."""
    import pyarrow as pa

    if table_name == "iterations":
        rows = run.rows()
        rows = rows[np.lexsort((rows["rank"], rows["iteration"]))]
        table: Any = add_columns(columns(rows), run.logged())
    elif table_name == "collectives":
        table = collectives(run.records())
    else:
        raise UsageError(
            f"to_arrow({table_name!r}): no such table. Write 'iterations' or 'collectives'."
        )
    # unknown figures are NaN; from_pandas converts NaN to null
    arrays = [pa.array(table[name], from_pandas=True) for name in table]
    fields = [
        pa.field(name, array.type, metadata=_unit(name))
        for name, array in zip(table, arrays, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _unit(name: str) -> dict[str, str] | None:
    """Return the metadata of a column: its unit, if it has one."""
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), None)
    if name == "bytes":
        unit = "bytes"
    return {"unit": unit} if unit else None


def _services(
    records: list[CollectiveRecord], times: list[npt.NDArray[np.int64]]
) -> list[npt.NDArray[np.float64]]:
    """Return the service times of each record's collectives; NaN where ranks are missing."""
    services = [np.full(record_times.shape[1], np.nan) for record_times in times]
    groups: dict[Any, list[int]] = {}
    for index, record in enumerate(records):
        if record.iteration >= 0:
            layout = record.layout
            # messages of two ranks may have the same name: the peers distinguish them
            key = (
                record.iteration,
                layout.names,
                layout.kinds,
                layout.process_sets,
                layout.peers,
            )
            groups.setdefault(key, []).append(index)
    for indices in groups.values():
        first = records[indices[0]]
        if len(indices) == peers(first.layout, first.record.world_size)[1]:
            service = service_times(np.stack([times[index] for index in indices]), first.layout)
            for index in indices:
                services[index] = service
    return services


def _ticks(record: CollectiveRecord) -> npt.NDArray[np.int64]:
    """Return the times of a record's collectives, of shape (TIMES, collectives)."""
    return np.array([getattr(record.record, name) for name in TIMES], np.int64)


def _joined(parts: list[Any]) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0)
