"""Measure how long ranks wait for late ranks, and for which ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.timings import Summary
from workbench.timings.lateness import lateness
from workbench.timings.ring_delays import AFTER_REDUCTION
from workbench.timings.store import Rows

UNEVEN_SHARE = 0.1
"""Waiting for ranks that are late now and then is a cause if it is at least this share of the
iteration, and if it passes `UNEVEN_EXPOSED`."""
UNEVEN_EXPOSED = 0.5
"""Minimum share of such waiting in the exposed communication that late ranks do not explain."""
MIN_UNEVEN_ITERATIONS = 5
"""Minimum number of iterations to decide whether ranks are late now and then."""


@dataclass(frozen=True)
class Waiting:
    """The waiting for the last rank, as means over warm iterations and ranks in microseconds.

    Attributes
    ----------
    named_us
        Waiting in iterations with a late rank. This rank is a separate cause.
    uneven_us
        Waiting in the other iterations, if it is a separate cause; otherwise 0.
    rank, rank_share, rank_us
        The rank that causes most of `uneven_us`, the share of this rank, and the time that the
        other ranks wait for this rank.
    all_us
        All waiting.
    """

    named_us: float
    uneven_us: float
    rank: int
    rank_share: float
    rank_us: float
    all_us: float


def find_waiting(summary: Summary, rows: Rows, stragglers: list[dict[str, Any]]) -> Waiting:
    """Return the waiting of some rows with their stragglers."""
    is_named = _within(rows, stragglers)
    waited = np.zeros(len(rows))
    waited_by_rank: dict[int, float] = {}
    iterations = 0
    for part in lateness(rows):
        iterations += len(part.places)
        waited[part.places] = part.waited_us
        longest = part.waited_us.max(axis=1) * ~is_named[part.places[:, 0]]
        last = part.ranks[part.late_us.argmax(axis=1)]
        for rank in np.unique(last):
            waited_by_rank[int(rank)] = (
                waited_by_rank.get(int(rank), 0.0) + longest[last == rank].sum()
            )
    named = float(np.mean(waited * is_named))
    uneven = float(np.mean(waited * ~is_named))
    total = sum(waited_by_rank.values())
    rank = max(waited_by_rank, key=lambda candidate: waited_by_rank[candidate], default=-1)
    unexplained = max(0.0, summary.exposed_us - named)
    min_uneven_us = max(UNEVEN_SHARE * summary.iteration_us, UNEVEN_EXPOSED * unexplained)
    return Waiting(
        named_us=named,
        uneven_us=uneven
        if iterations >= MIN_UNEVEN_ITERATIONS and uneven >= min_uneven_us
        else 0.0,
        rank=rank,
        rank_share=float(waited_by_rank[rank] / total) if total > 0 else 0.0,
        rank_us=float(waited_by_rank[rank] / iterations) if total > 0 else 0.0,
        all_us=float(waited.mean()),
    )


def _within(rows: Rows, stragglers: list[dict[str, Any]]) -> npt.NDArray[np.bool_]:
    """Return which rows belong to an iteration with a late rank, or one that this rank delays."""
    inside = np.zeros(len(rows), dtype=bool)
    for straggler in stragglers:
        if straggler["rank"] >= 0 or straggler["vm"]:
            last = straggler["last_iteration"]
            if straggler["phase"] in AFTER_REDUCTION or straggler["vm"]:
                last += 1  # the next iteration is delayed too
            inside |= (rows["iteration"] >= straggler["first_iteration"]) & (
                rows["iteration"] <= last
            )
    return inside
