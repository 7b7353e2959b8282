"""What single collectives cost over some iterations, by name.

Made for views that ask again and again: at most `MOST_RECORDS` records are read,
spread evenly over what was asked for, all at once by numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.timings.store import CollectiveRecord
from workbench.wire import Layout
from workbench.wire.record import TICK_NS

MOST_RECORDS = 512
"""Records that are read for one answer."""

_TO_ALL = ("allgather", "reducescatter", "alltoall")
"""Kinds whose bus bandwidth is (n-1)/n of their algorithm bandwidth."""


@dataclass(frozen=True)
class CollectiveTotal:
    """One collective, over some iterations and all ranks.

    Attributes
    ----------
    name, kind, process_set, by
        What it is: see `workbench.wire.Layout`.
    bytes
        On the wire, each time.
    median_us
        From submitted to seen finished, queueing included.
    busbw_gbps
        `bytes` over `median_us`, times the factor of its kind (10^9 bits/s).
    exposed_share
        Its part of the time that training stood still for communication, 0 to
        1; 0 where it never did. Collectives finish one after another: each is
        taken to be served since the one before it had finished, and what of
        that lies in the iteration's last `exposed` stretch is its part.
    """

    name: str
    kind: str
    process_set: int
    by: str
    bytes: int
    median_us: float
    busbw_gbps: float
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
    numbers = [one.iteration for one in records]
    step = -(-len(records) // MOST_RECORDS)
    groups = _by_layout(records[::step])
    exposed_ns = sum(one.record.exposed_ns for group in groups for one in group)
    found = [row for group in groups for row in _group(group, exposed_ns)]
    found.sort(key=lambda row: (-row.exposed_share, -row.median_us))
    return CollectiveTotals(min(numbers), max(numbers), tuple(found))


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
    count = len(layout.names)
    columns = (
        layout.names,
        layout.sizes_bytes,
        getattr(layout, "kinds", ("allreduce",) * count),
        getattr(layout, "process_sets", (0,) * count),
        getattr(layout, "by", ("optimizer",) * count),
    )
    return zip(*columns, strict=True)


def _group(records: list[CollectiveRecord], exposed_ns: int) -> Iterable[CollectiveTotal]:
    layout = records[0].layout
    submitted, finished = (
        np.array([getattr(one.record, name) for one in records], np.int64) * TICK_NS
        for name in ("submitted", "finished")
    )
    median_us = np.median(finished - submitted, axis=0) / 1e3
    exposed = np.array([one.record.exposed_ns for one in records], np.int64)
    shares = _exposed(submitted, finished, exposed).sum(axis=0) / max(1, exposed_ns)
    ranks = getattr(layout, "ranks", None) or (records[0].record.world_size,) * len(layout.names)
    for place, (name, size, kind, process_set, by) in enumerate(_operations(layout)):
        us, n = float(median_us[place]), max(1, ranks[place])
        busbw = size * 8 / (us * 1e3) * _bus_factor(kind, n) if us > 0 else float("nan")
        share = float(shares[place])
        yield CollectiveTotal(name, kind, process_set, by, size, us, busbw, share)


def _bus_factor(kind: str, n: int) -> float:
    """Return bus bandwidth over algorithm bandwidth (nccl-tests, PERFORMANCE.md)."""
    if kind == "broadcast":
        return 1.0
    return (n - 1) / n if kind in _TO_ALL else 2 * (n - 1) / n


def _exposed(
    submitted: npt.NDArray[np.int64],
    finished: npt.NDArray[np.int64],
    exposed: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Return each collective's part of the exposed time, all in ns, of shape (records, n)."""
    order = np.argsort(finished, axis=1, kind="stable")
    ends = np.take_along_axis(finished, order, axis=1)
    begins = np.take_along_axis(submitted, order, axis=1)
    before = np.concatenate([np.zeros((len(ends), 1), np.int64), ends[:, :-1]], axis=1)
    since = ends[:, -1] - exposed
    parts: npt.NDArray[np.int64] = np.maximum(
        0, ends - np.maximum(np.maximum(begins, before), since[:, None])
    )
    shares: npt.NDArray[np.int64] = np.empty_like(parts)
    np.put_along_axis(shares, order, parts, axis=1)
    return shares
