"""Which ranks the others waited for, when, and in which phase they differ."""

from __future__ import annotations

from typing import Any

import numpy as np

from workbench.timings.derive import waiting_us
from workbench.timings.store import Rows

LEAST_ITERATIONS = 5
"""A rank is named when it arrives last this often in a stretch..."""
LEAST_SHARE = 0.05
"""...and the others wait for at least this share of the median iteration."""
FORGIVEN = 2
"""Iterations in a row that another rank may be late by chance without ending a stretch."""
_OWN_PHASES = ("data", "forward", "backward", "optimizer", "other")


def find(rows: Rows) -> list[dict[str, Any]]:
    """Return one row per stretch: rank, phase, excess_us, first_iteration, last_iteration.

    ``excess_us`` is the median time that the longest-waiting rank waited;
    ``phase`` is where the rank spends most more than the median of the others.
    """
    waits = waiting_us(rows)
    whole = ~np.isnan(waits)
    rows, waits = rows[whole], waits[whole]
    if len(np.unique(rows["rank"])) < 2:
        return []
    least = LEAST_SHARE * float(np.median(rows["iteration_ns"])) / 1e3
    return [
        _describe(rows, rank, numbers, excess)
        for rank, numbers, excess in _stretches(rows, waits, least)
    ]


def _stretches(rows: Rows, waits: Any, least: float) -> list[tuple[int, Any, float]]:
    """Return stretches in which one rank arrives last by at least `least`, noise forgiven."""
    order = np.lexsort((waits, rows["iteration"]))
    numbers, first = np.unique(rows["iteration"][order], return_index=True)
    longest = np.maximum.reduceat(waits[order], first)
    last_rank = np.where(longest >= least, rows["rank"][order][first], -1)
    found = []
    for rank in np.unique(last_rank[last_rank >= 0]):
        places = np.flatnonzero(last_rank == rank)
        breaks = np.flatnonzero(np.diff(places) > 1 + FORGIVEN) + 1
        found += [
            (int(rank), numbers[part], float(np.median(longest[part])))
            for part in np.split(places, breaks)
            if len(part) >= LEAST_ITERATIONS
        ]
    return sorted(found, key=lambda stretch: int(stretch[1][0]))


def _describe(rows: Rows, rank: int, numbers: Any, excess: float) -> dict[str, Any]:
    stretch = rows[np.isin(rows["iteration"], numbers)]
    own, others = stretch[stretch["rank"] == rank], stretch[stretch["rank"] != rank]
    more = {
        phase: float(np.median(own[f"{phase}_ns"]) - np.median(others[f"{phase}_ns"]))
        for phase in _OWN_PHASES
    }
    return {
        "rank": rank,
        "phase": max(more, key=lambda phase: more[phase]),
        "excess_us": excess,
        "first_iteration": int(numbers[0]),
        "last_iteration": int(numbers[-1]),
    }
