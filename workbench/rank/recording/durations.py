"""Durations of an iteration's collectives, and of the waits for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from workbench.wire.record import Buffers

Interval = tuple[int, int]
"""Begin and end, in nanoseconds."""
Durations = tuple[int, int, int, int]
"""Nanoseconds of communication, of waits in it, of waits in transfers, and of other waits."""
_NEVER = np.iinfo(np.int64).min


def durations(
    times: npt.NDArray[np.int64], buffers: Buffers, waits: Sequence[Sequence[Interval]]
) -> list[Durations]:
    """Return the durations of each iteration's communication.

    Parameters
    ----------
    times
        The `TIMES` of the collectives of all iterations, in nanoseconds since the start of their
        iteration.
    buffers
        The buffers of these collectives.
    waits
        The intervals of waiting in each iteration, in nanoseconds since its start.
    """
    order = buffers.order
    first = buffers.first
    if not len(first):
        return [(0, 0, 0, _stopped(waiting, _NEVER, _NEVER)) for waiting in waits]
    submitted = times[0][order]
    began, ended = times[2:-1].take(order[first], axis=1).tolist()
    # all collectives of a buffer are in progress when it gets its response
    begins = np.minimum.reduceat(submitted, first).tolist()
    latest = np.maximum.reduceat(submitted, first).tolist()
    ends = np.maximum.reduceat(times[-1][order], first).tolist()
    results = []
    for waiting, (start, end) in zip(waits, pairwise(buffers.bounds), strict=True):
        part = slice(start, end)
        # a collective submitted before its iteration counts from the iteration's start
        busy = merge(
            (max(begin, 0), max(end, 0))
            for begin, end in zip(begins[part], ends[part], strict=True)
        )
        transfers = merge(zip(began[part], ended[part], strict=True))
        results.append(
            (
                sum(end - begin for begin, end in busy),
                overlap(busy, waiting),
                overlap(transfers, waiting),
                _stopped(
                    waiting, max(latest[part], default=_NEVER), max(ends[part], default=_NEVER)
                ),
            )
        )
    return results


def merge(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union of intervals, in order.

    Examples
    --------
    >>> merge([(5, 8), (0, 2), (1, 3)])
    [(0, 3), (5, 8)]
    """
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = merged[-1][0], end
        else:
            merged.append((begin, end))
    return merged


def overlap(first: Sequence[Interval], second: Sequence[Interval]) -> int:
    """Return the length of the intersection of two lists of ordered, disjoint intervals.

    Examples
    --------
    >>> overlap([(0, 3), (5, 8)], [(2, 6)])
    2
    """
    total = next_first = 0
    for begin, end in second:
        while next_first < len(first) and first[next_first][1] <= begin:
            next_first += 1
        index = next_first
        while index < len(first) and first[index][0] < end:
            total += min(end, first[index][1]) - max(begin, first[index][0])
            index += 1
    return total


def _stopped(waits: Sequence[Interval], last: int, done: int) -> int:
    """Return the duration of the waits that were not for the iteration's last collective.

    The last collective was submitted at `last`, and all collectives had finished at `done`.
    """
    untils = ((begin, end if begin >= done else min(end, last)) for begin, end in waits)
    return sum(max(until - begin, 0) for begin, until in untils)
