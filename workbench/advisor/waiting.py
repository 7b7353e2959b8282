"""How long ranks wait for late ranks, and for which."""

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
"""Waiting for ranks that are late now and then is a cause from this share of the iteration on..."""
UNEVEN_EXPOSED = 0.5
"""...if it is at least this share of the exposed communication that late ranks do not explain."""
UNEVEN_LEAST = 5
"""Fewest iterations that show whether ranks are late now and then."""


@dataclass(frozen=True)
class Waiting:
    """Why ranks wait for the last rank, as means over warm iterations and ranks in microseconds.

    Attributes
    ----------
    named_us
        In iterations with a late rank, which is a cause of its own.
    uneven_us
        In the others, if that is a cause of its own; otherwise 0.
    rank, rank_share, rank_us
        Which rank most of `uneven_us` is for, its share, and how long the others wait for it.
    all_us
        All waiting.
    """

    named_us: float
    uneven_us: float
    rank: int
    rank_share: float
    rank_us: float
    all_us: float


def find_waiting(summary: Summary, rows: Rows, late: list[dict[str, Any]]) -> Waiting:
    """Return the waiting of some rows; `late` are their stragglers."""
    within = _within(rows, late)
    waited = np.zeros(len(rows))
    at_ranks: dict[int, float] = {}
    iterations = 0
    for found in lateness(rows):
        iterations += len(found.places)
        waited[found.places] = found.waited_us
        longest = found.waited_us.max(axis=1) * ~within[found.places[:, 0]]
        last = found.ranks[found.late_us.argmax(axis=1)]
        for rank in np.unique(last):
            at_ranks[int(rank)] = at_ranks.get(int(rank), 0.0) + longest[last == rank].sum()
    named, uneven = float(np.mean(waited * within)), float(np.mean(waited * ~within))
    total = sum(at_ranks.values())
    rank = max(at_ranks, key=lambda one: at_ranks[one], default=-1)
    unexplained = max(0.0, summary.exposed_us - named)
    least = max(UNEVEN_SHARE * summary.iteration_us, UNEVEN_EXPOSED * unexplained)
    return Waiting(
        named_us=named,
        uneven_us=uneven if iterations >= UNEVEN_LEAST and uneven >= least else 0.0,
        rank=rank,
        rank_share=float(at_ranks[rank] / total) if total > 0 else 0.0,
        rank_us=float(at_ranks[rank] / iterations) if total > 0 else 0.0,
        all_us=float(waited.mean()),
    )


def _within(rows: Rows, late: list[dict[str, Any]]) -> npt.NDArray[np.bool_]:
    """Return which rows belong to iterations with a late rank, or follow one that delays them."""
    inside = np.zeros(len(rows), dtype=bool)
    for found in late:
        if found["rank"] >= 0 or found["vm"]:
            delays_next = found["phase"] in AFTER_REDUCTION or found["vm"]
            last = found["last_iteration"] + bool(delays_next)
            inside |= (rows["iteration"] >= found["first_iteration"]) & (rows["iteration"] <= last)
    return inside
