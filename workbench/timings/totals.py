"""The cost of single collectives over some iterations, by name.

Views request the costs often. So `total` reads at most `MAX_RECORDS` records, evenly spread over
the iterations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from workbench.resources import Unknown
from workbench.timings.buffers import is_timed, number_buffers
from workbench.timings.derive import bus_factor
from workbench.timings.groups import group_names
from workbench.timings.store import CollectiveRecord
from workbench.wire import Flag, Layout
from workbench.wire.record import TICK_NS, TIMES

Times = npt.NDArray[np.int64]
_Operation = tuple[str, int, str, int, str, int]
"""Name, bytes, kind, process set, caller, and the other rank of a message."""

MAX_RECORDS = 512
"""Maximum number of records that are read."""
_NO_TIME = Unknown("it took no time that could be measured")
_NOT_TIMED = Unknown("not recorded")


@dataclass(frozen=True)
class CollectiveTotal:
    """One collective, over some iterations and all ranks.

    Attributes
    ----------
    name, kind, process_set, by
        See `workbench.wire.Layout`.
    bytes
        Bytes on the wire per iteration and rank.
    mean_us
        Time from submitted to finished, with queueing: the mean over iterations and ranks,
        without the first iteration of a cell unless there are no others.
    queued_us, transfer_us
        Mean time until all ranks had submitted the collective, and mean duration of the transfer;
        or the reason why they are unknown.
    busbw_gbps
        `bytes` over `mean_us` times `bus_factor` of the kind (10^9 bits/s), or the reason why it is
        unknown.
    exposed_share
        Share, 0 to 1, of the time that training waited for communication. Buffers finish
        one after another, so a buffer is assumed to run since the previous buffer finished. The
        share of the buffer is the part of this time within the iteration's `exposed` time. It is
        divided among the collectives of the buffer by their bytes.
    group
        The name of the collective's group of ranks (`groups.group_names`); empty for all ranks.
    peer
        See `workbench.wire.Layout`.
    """

    name: str
    kind: str
    process_set: int
    by: str
    bytes: int
    mean_us: float
    queued_us: float | Unknown
    transfer_us: float | Unknown
    busbw_gbps: float | Unknown
    exposed_share: float
    group: str = ""
    peer: int = -1


@dataclass(frozen=True)
class CollectiveTotals:
    """The collectives of some iterations.

    Attributes
    ----------
    first_iteration, last_iteration
        The iterations with stored records; -1 if there are none.
    collectives
        The most expensive first: by `exposed_share`, then by time.
    """

    first_iteration: int
    last_iteration: int
    collectives: tuple[CollectiveTotal, ...]


def total(records: Sequence[CollectiveRecord]) -> CollectiveTotals:
    """Return the cost of each collective of `records`."""
    if not records:
        return CollectiveTotals(-1, -1, ())
    records = [record for record in records if not record.flags & Flag.LEFT_OUT] or records
    numbers = [record.iteration for record in records]
    step = -(-len(records) // MAX_RECORDS)
    costs: dict[_Operation, list[_Cost]] = {}
    for group in _by_layout(records[::step]):
        for operation, cost in _costs(group):
            costs.setdefault(operation, []).append(cost)
    exposed_ns = max(1, sum(record.record.exposed_ns for record in records[::step]))
    names = group_names(records[::step], unique=True)
    totals = [_total(operation, parts, exposed_ns, names) for operation, parts in costs.items()]
    totals.sort(key=lambda row: (-row.exposed_share, -row.mean_us))
    return CollectiveTotals(min(numbers), max(numbers), tuple(totals))


class _Cost(NamedTuple):
    """The cost of a collective in the records of one layout: means in us, and a sum in ns."""

    records: int
    us: float
    queued_us: float
    transfer_us: float
    exposed_ns: float
    ranks: int


def _total(
    operation: _Operation, costs: list[_Cost], exposed_ns: int, names: dict[int, str]
) -> CollectiveTotal:
    """Return the mean of a collective's costs in several layouts."""
    name, size, kind, process_set, by, peer = operation
    counts = [cost.records for cost in costs]
    mean_us, *parts = (
        float(np.average([getattr(cost, part) for cost in costs], weights=counts))
        for part in ("us", "queued_us", "transfer_us")
    )
    queued, transfer = (_NOT_TIMED if np.isnan(part) else part for part in parts)
    share = sum(cost.exposed_ns for cost in costs) / exposed_ns
    factor = bus_factor(kind, costs[-1].ranks)
    busbw = size * 8 / (mean_us * 1e3) * factor if mean_us > 0 else _NO_TIME
    group = names.get(process_set, "")
    return CollectiveTotal(
        name, kind, process_set, by, size, mean_us, queued, transfer, busbw, share, group, peer
    )


def _by_layout(records: Iterable[CollectiveRecord]) -> list[list[CollectiveRecord]]:
    """Return groups of records; the records of a group have the same collectives."""
    keys: dict[int, tuple[Any, ...]] = {}
    groups: dict[tuple[Any, ...], list[CollectiveRecord]] = {}
    for record in records:
        key = keys.get(id(record.layout))
        if key is None:
            key = keys[id(record.layout)] = tuple(_operations(record.layout))
        groups.setdefault(key, []).append(record)
    return list(groups.values())


def _operations(layout: Layout) -> Iterable[_Operation]:
    """Return the operation of each collective of a layout."""
    return zip(
        layout.names,
        layout.sizes_bytes,
        layout.kinds,
        layout.process_sets,
        layout.by,
        layout.peers,
        strict=True,
    )


def _costs(records: list[CollectiveRecord]) -> Iterable[tuple[_Operation, _Cost]]:
    """Yield each collective of a layout with its cost."""
    layout = records[0].layout
    times = (
        np.array([[getattr(r.record, name) for r in records] for name in TIMES], np.int64) * TICK_NS
    )
    submitted, responded, began, ended, finished = times
    exposed = np.array([record.record.exposed_ns for record in records], np.int64)
    timed = is_timed(layout)
    columns = (
        np.mean(finished - submitted, axis=0) / 1e3,
        np.where(timed, np.mean(responded - submitted, axis=0) / 1e3, np.nan),
        np.where(timed, np.mean(ended - began, axis=0) / 1e3, np.nan),
        _exposed(times, exposed, layout).sum(axis=0),
    )
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for operation, ranks, row in zip(_operations(layout), layout.ranks, rows, strict=True):
        us, queued_us, transfer_us, exposed_ns = row
        yield operation, _Cost(len(records), us, queued_us, transfer_us, exposed_ns, ranks)


def _exposed(times: Times, exposed: Times, layout: Layout) -> npt.NDArray[np.float64]:
    """Return the exposed time of each collective, in ns, of shape (records, collectives).

    `times` has the shape (TIMES, records, collectives).
    """
    submitted = times[0]
    finished = times[-1]
    order = np.argsort(finished, axis=1, kind="stable")
    begins, ends = (np.take_along_axis(column, order, axis=1) for column in (submitted, finished))
    before = np.concatenate([np.zeros((len(ends), 1), np.int64), ends[:, :-1]], axis=1)
    since = ends[:, -1] - exposed
    served = np.maximum(0, ends - np.maximum(np.maximum(begins, before), since[:, None]))
    buffer = np.array([number_buffers(times[:, row], layout) for row in range(len(ends))])
    buffer = np.take_along_axis(buffer, order, axis=1)
    # one number per buffer of each record
    group = (buffer + np.arange(len(ends))[:, None] * (ends.shape[1] + 1)).ravel()
    sizes = np.maximum(1, np.array(layout.sizes_bytes))[order]
    together = np.bincount(group, served.ravel())[group]
    share = sizes.ravel() / np.bincount(group, sizes.ravel())[group]
    parts = np.empty(served.shape)
    np.put_along_axis(parts, order, (together * share).reshape(served.shape), axis=1)
    return parts
