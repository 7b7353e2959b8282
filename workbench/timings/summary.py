"""The key figures of a run, or of its latest stretch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from workbench.timings.derive import bandwidth_gbps, columns
from workbench.timings.store import PHASES, Rows, first_of_cell, has_flag, warm
from workbench.timings.stragglers import throughout
from workbench.wire import Flag

LATEST = 100
"""Iterations that the live figures look back on."""


@dataclass(frozen=True)
class Summary:
    """Key figures over some iterations: means over iterations and ranks, which add up.

    The first iteration of a cell is left out where there are others: it
    allocates, negotiates and warms up. NaN where a figure is not known.

    Attributes
    ----------
    iteration
        Number of the latest iteration, or -1.
    iterations
        How many the figures cover.
    left_out
        First iterations of cells that they do not cover.
    ranks
        Ranks that reported.
    iterations_per_s
        Iterations per second: one over `iteration_us`. Pauses between cells are no iterations.
    iteration_us
        Duration of an iteration.
    phases_us
        The phases, by name; they add up to `iteration_us`.
    communication_us, overlapped_us
        Time with gradients under way, and the part of it behind compute.
    exposed_us, exposed_share
        Time that training stood still for gradients, and its share of the iteration.
    unheard
        Iterations in which ranks communicated by torch.distributed where
        nothing can time it. Where that is all they did, the figures of the
        communication are NaN, and its time is in the other phases.
    algbw_gbps, busbw_gbps
        Bandwidth of the communication (10^9 bits per second): all bytes over all its time.
    bytes, tensors
        Gradients of one rank and iteration.
    slowest_rank, slowest_excess_us
        The rank that is late throughout, as `stragglers.throughout` tells, and
        by how much, or None.
    """

    iteration: int
    iterations: int
    left_out: int
    ranks: int
    iterations_per_s: float
    iteration_us: float
    phases_us: dict[str, float]
    communication_us: float
    overlapped_us: float
    exposed_us: float
    exposed_share: float
    unheard: int
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
    asked, rows = rows, warm(rows)
    table = columns(rows)
    iteration_us = _mean(table["iteration_us"])
    exposed = ~np.isnan(table["exposed_us"])
    total = table["iteration_us"][exposed].sum()
    rank, excess = throughout(rows)
    return Summary(
        iteration=last,
        iterations=_count(rows),
        left_out=_count(asked[first_of_cell(asked)]) if len(rows) < len(asked) else 0,
        ranks=len(np.unique(rows["rank"])),
        iterations_per_s=1e6 / iteration_us if iteration_us > 0 else float("nan"),
        iteration_us=iteration_us,
        phases_us={phase: _mean(rows[f"{phase}_ns"] / 1e3) for phase in PHASES},
        communication_us=_mean(table["communication_us"]),
        overlapped_us=_mean((rows["overlapped_ns"] / 1e3)[exposed]),
        exposed_us=_mean(table["exposed_us"]),
        exposed_share=float(table["exposed_us"][exposed].sum() / total) if total else float("nan"),
        unheard=_count(rows[has_flag(rows, Flag.UNHEARD)]),
        algbw_gbps=bandwidth_gbps(rows, bus=False),
        busbw_gbps=bandwidth_gbps(rows, bus=True),
        bytes=round(_mean(rows["bytes"])) if len(rows) else 0,
        tensors=round(_mean(rows["tensors"])) if len(rows) else 0,
        slowest_rank=rank,
        slowest_excess_us=excess,
    )


def warm_note(left_out: int) -> str:
    """Say which iterations the means of a `Summary` leave out; empty where it is none."""
    if not left_out:
        return ""
    if left_out == 1:
        return "The first iteration is left out: it warms up."
    return f"The first iterations of {left_out} cells are left out: they warm up."


UNHEARD = (
    "Communication by torch.distributed outside DistributedDataParallel is not timed: its time is "
    "in the other phases"
)
"""What is said of iterations in which ranks communicated where nothing can time it."""


def notes(summary: Summary) -> tuple[str, ...]:
    """Return what a reader must know of the figures: what they leave out, what is not in them."""
    found = [warm_note(summary.left_out)]
    if summary.unheard:
        some = "" if summary.unheard >= summary.iterations else " (in some iterations)"
        found.append(f"{UNHEARD}{some}.")
    return tuple(filter(None, found))


def _count(rows: Rows) -> int:
    return len(np.unique(rows["iteration"]))


def _mean(values: Any) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")
