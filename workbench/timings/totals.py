"""What single collectives cost over some iterations, by name.

Made for views that ask again and again: at most `MOST_RECORDS` records are read,
spread evenly over what was asked for, all at once by numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.resources import Unknown
from workbench.timings.derive import bus_factor
from workbench.timings.store import CollectiveRecord
from workbench.wire import Flag, Layout
from workbench.wire.record import TICK_NS

Times = npt.NDArray[np.int64]

MOST_RECORDS = 512
"""Records that are read for one answer."""
_NO_TIME = Unknown("it took no time that could be measured")


@dataclass(frozen=True)
class CollectiveTotal:
    """One collective, over some iterations and all ranks.

    Attributes
    ----------
    name, kind, process_set, by
        What it is: see `workbench.wire.Layout`.
    bytes
        On the wire, each time.
    mean_us
        From submitted to seen finished, queueing included: the mean over iterations and ranks,
        without the first iteration of a cell where there are others.
    busbw_gbps
        `bytes` over `mean_us`, times the factor of its kind (10^9 bits/s), or
        why that is not known.
    exposed_share
        Its part of the time that training stood still for communication, 0 to
        1; 0 where it never did. Buffers finish one after another: each is
        taken to be served since the one before it had finished, and what of
        that lies in the iteration's last `exposed` stretch is its part, which
        its collectives share by their bytes.
    """

    name: str
    kind: str
    process_set: int
    by: str
    bytes: int
    mean_us: float
    busbw_gbps: float | Unknown
    exposed_share: float


@dataclass(frozen=True)
class CollectiveTotals:
    """The collectives of some iterations.

    Attributes
    ----------
    first_iteration, last_iteration
        Those that single collectives are still held of; -1 where of none.
    collectives
        The worst first: by `exposed_share`, then by time.
    """

    first_iteration: int
    last_iteration: int
    collectives: tuple[CollectiveTotal, ...]


def total(records: Sequence[CollectiveRecord]) -> CollectiveTotals:
    """Return what each collective of `records` cost."""
    if not records:
        return CollectiveTotals(-1, -1, ())
    records = [one for one in records if not one.record.flags & Flag.FIRST_OF_CELL] or records
    numbers = [one.iteration for one in records]
    step = -(-len(records) // MOST_RECORDS)
    groups = _by_layout(records[::step])
    exposed_ns = sum(one.record.exposed_ns for group in groups for one in group)
    found = _merged([(row, len(group)) for group in groups for row in _group(group, exposed_ns)])
    found.sort(key=lambda row: (-row.exposed_share, -row.mean_us))
    return CollectiveTotals(min(numbers), max(numbers), tuple(found))


def _merged(rows: list[tuple[CollectiveTotal, int]]) -> list[CollectiveTotal]:
    """Return one row per collective, whichever others were in the same iterations.

    Parameters
    ----------
    rows
        Each with the number of records that it is the mean of.
    """
    alike: dict[tuple[Any, ...], list[tuple[CollectiveTotal, int]]] = {}
    for row, count in rows:
        key = row.name, row.kind, row.process_set, row.by, row.bytes
        alike.setdefault(key, []).append((row, count))
    found = []
    for same in alike.values():
        mean_us = sum(row.mean_us * n for row, n in same) / sum(n for _, n in same)
        share = sum(row.exposed_share for row, _ in same)
        busbw: float | Unknown = _NO_TIME
        for row, _ in same:
            if not isinstance(row.busbw_gbps, Unknown):
                busbw = row.busbw_gbps * row.mean_us / mean_us
        found.append(replace(same[0][0], mean_us=mean_us, busbw_gbps=busbw, exposed_share=share))
    return found


def _by_layout(records: Iterable[CollectiveRecord]) -> list[list[CollectiveRecord]]:
    """Return the records in groups that have the same collectives, whatever their rank."""
    keys: dict[int, tuple[Any, ...]] = {}
    groups: dict[tuple[Any, ...], list[CollectiveRecord]] = {}
    for one in records:
        key = keys.get(id(one.layout))
        if key is None:
            key = keys[id(one.layout)] = tuple(_operations(one.layout))
        groups.setdefault(key, []).append(one)
    return list(groups.values())


def _operations(layout: Layout) -> Iterable[tuple[str, int, str, int, str]]:
    one = layout
    return zip(one.names, one.sizes_bytes, one.kinds, one.process_sets, one.by, strict=True)


def _group(records: list[CollectiveRecord], exposed_ns: int) -> Iterable[CollectiveTotal]:
    layout = records[0].layout
    submitted, unfinished, finished = (
        np.array([getattr(one.record, name) for one in records], np.int64) * TICK_NS
        for name in ("submitted", "unfinished", "finished")
    )
    mean_us = np.mean(finished - submitted, axis=0) / 1e3
    exposed = np.array([one.record.exposed_ns for one in records], np.int64)
    parts = _exposed(submitted, unfinished, finished, exposed, layout)
    shares = parts.sum(axis=0) / max(1, exposed_ns)
    for place, (name, size, kind, process_set, by) in enumerate(_operations(layout)):
        us, n = float(mean_us[place]), layout.ranks[place]
        busbw = size * 8 / (us * 1e3) * bus_factor(kind, n) if us > 0 else _NO_TIME
        share = float(shares[place])
        yield CollectiveTotal(name, kind, process_set, by, size, us, busbw, share)


def _exposed(
    submitted: Times,
    unfinished: Times,
    finished: Times,
    exposed: Times,
    layout: Layout,
) -> npt.NDArray[np.float64]:
    """Return each collective's part of the exposed time, all in ns, of shape (records, n)."""
    order = np.argsort(finished, axis=1, kind="stable")
    begins, looks, ends = (
        np.take_along_axis(column, order, axis=1) for column in (submitted, unfinished, finished)
    )
    before = np.concatenate([np.zeros((len(ends), 1), np.int64), ends[:, :-1]], axis=1)
    since = ends[:, -1] - exposed
    served = np.maximum(0, ends - np.maximum(np.maximum(begins, before), since[:, None]))
    # what may have ended with the one before it travelled with it: see `service`
    kind = np.array([hash(key) for key in zip(layout.kinds, layout.process_sets, strict=True)])
    alike = kind[order[:, 1:]] == kind[order[:, :-1]]
    apart = ~(alike & (looks[:, 1:] < ends[:, :-1]))
    buffer = np.cumsum(np.pad(apart, ((0, 0), (1, 0)), constant_values=True), axis=1)
    place = (buffer + np.arange(len(ends))[:, None] * (ends.shape[1] + 1)).ravel()
    sizes = np.maximum(1, np.array(layout.sizes_bytes))[order]
    together = np.bincount(place, served.ravel())[place]
    share = sizes.ravel() / np.bincount(place, sizes.ravel())[place]
    parts = np.empty(served.shape)
    np.put_along_axis(parts, order, (together * share).reshape(served.shape), axis=1)
    return parts
