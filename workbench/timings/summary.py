"""The key figures of a run, or of its latest stretch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from workbench.timings.derive import columns
from workbench.timings.store import PHASES, Rows, warm
from workbench.timings.stragglers import throughout

LATEST = 100
"""Iterations that the live figures look back on."""


@dataclass(frozen=True)
class Summary:
    """Key figures over some iterations; medians over iterations of means over ranks.

    The first iteration of a cell is left out where there are others: it
    allocates, negotiates and warms up. NaN where there is nothing to tell.

    Attributes
    ----------
    iteration
        Number of the latest iteration, or -1.
    iterations
        How many the figures cover.
    ranks
        Ranks that reported.
    iterations_per_s
        Iterations per second, from the times at which they ended.
    iteration_us
        Duration of an iteration.
    phases_us
        Means of the phases, by name; they add up to the mean iteration.
    communication_us, overlapped_us
        Time with gradients under way, and the part of it behind compute.
    exposed_us, exposed_share
        Time that training stood still for gradients, and its share of the iteration.
    algbw_gbps, busbw_gbps
        Bandwidth of the communication (10^9 bits per second).
    bytes, tensors
        Gradients of one rank and iteration.
    slowest_rank, slowest_excess_us
        The rank that is late throughout, as `stragglers.throughout` tells, and
        by how much, or None.
    """

    iteration: int
    iterations: int
    ranks: int
    iterations_per_s: float
    iteration_us: float
    phases_us: dict[str, float]
    communication_us: float
    overlapped_us: float
    exposed_us: float
    exposed_share: float
    algbw_gbps: float
    busbw_gbps: float
    bytes: int
    tensors: int
    slowest_rank: int | None
    slowest_excess_us: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return asdict(self)


def summarize(rows: Rows, latest: int | None = None) -> Summary:
    """Return the key figures of `rows`, or of their `latest` iterations."""
    last = int(rows["iteration"].max()) if len(rows) else -1
    if latest is not None and len(rows):
        rows = rows[rows["iteration"] > last - latest]
    rows = warm(rows)
    table = columns(rows)
    rank, excess = throughout(rows)
    total = table["iteration_us"].sum()
    return Summary(
        iteration=last,
        iterations=len(np.unique(rows["iteration"])),
        ranks=len(np.unique(rows["rank"])),
        iterations_per_s=_rate(rows),
        iteration_us=_typical(rows, table["iteration_us"]),
        phases_us={phase: _mean(rows[f"{phase}_ns"] / 1e3) for phase in PHASES},
        communication_us=_typical(rows, table["communication_us"]),
        overlapped_us=_typical(rows, rows["overlapped_ns"] / 1e3),
        exposed_us=_typical(rows, table["exposed_us"]),
        exposed_share=float(table["exposed_us"].sum() / total) if total else float("nan"),
        algbw_gbps=_median(table["algbw_gbps"]),
        busbw_gbps=_median(table["busbw_gbps"]),
        bytes=int(np.median(rows["bytes"])) if len(rows) else 0,
        tensors=int(np.median(rows["tensors"])) if len(rows) else 0,
        slowest_rank=rank,
        slowest_excess_us=excess,
    )


def _typical(rows: Rows, values: Any) -> float:
    """Return the median over iterations of the mean over ranks."""
    if not len(rows):
        return float("nan")
    _, place = np.unique(rows["iteration"], return_inverse=True)
    return float(np.median(np.bincount(place, values) / np.bincount(place)))


def _rate(rows: Rows) -> float:
    """Return iterations per second of the lowest rank, between its first and last end."""
    if not len(rows):
        return float("nan")
    own = rows[rows["rank"] == rows["rank"].min()]
    ends = np.sort(own["start_ns"] + own["iteration_ns"])
    # pauses between cells are no iterations
    busy = own["iteration_ns"].sum() if len(np.unique(own["cell"])) > 1 else ends[-1] - ends[0]
    count = len(own) if len(np.unique(own["cell"])) > 1 else len(own) - 1
    return float(count / busy * 1e9) if busy > 0 and count else float("nan")


def _median(values: Any) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else float("nan")


def _mean(values: Any) -> float:
    return float(values.mean()) if len(values) else float("nan")
