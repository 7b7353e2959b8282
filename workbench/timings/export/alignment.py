"""Conversion of all ranks' times to one clock.

Each rank reads the monotonic clock of its own VM. Pings between the kernel and the ranks measure
the differences of these clocks. Without pings, ranks of different VMs are aligned by their
collectives, which end on all ranks at nearly the same time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from workbench.errors import UsageError
from workbench.timings.clocks import Floats, Times
from workbench.timings.export.iterations import Iteration, iter_iterations
from workbench.timings.source import ClocksLike, TimingsSource
from workbench.timings.store import Rows

_log = logging.getLogger(__name__)

_MAX_SAMPLED = 1024
"""Maximum number of iterations, evenly spread, for an alignment by collectives."""


@dataclass
class Alignment:
    """A conversion of the ranks' times to a common clock.

    Attributes
    ----------
    method
        Description of the method.
    to_common
        Function of three arrays: cells, ranks, and times on the ranks' clocks in nanoseconds. It
        returns the times on the common clock and their uncertainties, both in nanoseconds.
    uncertainty_ns
        The largest uncertainty, by rank.

    Examples
    --------
    >>> alignment = Alignment("one VM", _unchanged, {0: 0.0})
    >>> alignment.to_common(np.array([1]), np.array([0]), np.array([2_000]))[0].tolist()
    [2000]
    """

    method: str
    to_common: Callable[[Times, Times, Times], tuple[Times, Floats]]
    uncertainty_ns: dict[int, float]

    def begins(self, rows: Rows) -> Times:
        """Return the start of each row's iteration, in nanoseconds of the common clock."""
        return self.to_common(rows["cell"], rows["rank"], rows["start_ns"])[0]


def align(run: TimingsSource, rows: Rows, clocks: ClocksLike | None) -> Alignment:
    """Return the alignment of the ranks of `rows`.

    Parameters
    ----------
    run
        The timings.
    rows
        Rows of `run` in the order of `select_rows`.
    clocks
        Clocks that the user passes, as an object with ``to_kernel(rank, t_ns)`` or such a function;
        None for the clocks of the run.

    Raises
    ------
    UsageError
        `clocks` is neither such an object nor a function.
    """
    alignment = _choose_alignment(run, rows, clocks)
    _log.debug("alignment of %d ranks: %s", len(alignment.uncertainty_ns), alignment.method)
    return alignment


def _choose_alignment(run: TimingsSource, rows: Rows, clocks: ClocksLike | None) -> Alignment:
    if clocks is not None:
        to_kernel = getattr(clocks, "to_kernel", clocks)
        if not callable(to_kernel):
            raise UsageError(
                f"clocks={clocks!r}: not clocks. Give an object with to_kernel(rank, t_ns), or "
                "such a function."
            )
        return _with_uncertainty("clocks that were given", rows, partial(_convert_each, to_kernel))
    ranks = [int(rank) for rank in np.unique(rows["rank"])]
    names = run.vm_names()
    vms = {names.get(rank) for rank in ranks}
    if len(ranks) == 1 or (len(vms) == 1 and None not in vms):
        return _with_uncertainty("one machine: all ranks read its clock", rows, _unchanged)
    run_clocks = run.known_clocks()
    if run_clocks is not None:
        method = "pings from the kernel, on its clock"
        pinged = _with_uncertainty(method, rows, run_clocks.to_kernel)
        if all(map(math.isfinite, pinged.uncertainty_ns.values())):
            return pinged
    return _by_common_ends(run, rows, ranks)


def _with_uncertainty(method: str, rows: Rows, to_common: Any) -> Alignment:
    """Return an alignment with the largest uncertainty of each rank in `rows`."""
    uncertainty = to_common(rows["cell"], rows["rank"], rows["start_ns"])[1]
    largest = {
        int(rank): float(uncertainty[rows["rank"] == rank].max())
        for rank in np.unique(rows["rank"])
    }
    return Alignment(method, to_common, largest)


def _unchanged(_cells: Times, _ranks: Times, t_ns: Times) -> tuple[Times, Floats]:
    return t_ns.astype(np.int64), np.zeros(len(t_ns))


def _convert_each(to_kernel: Any, _cells: Times, ranks: Times, t_ns: Times) -> tuple[Times, Floats]:
    """Convert the times one by one with a function that the user passes."""
    plain_ns = t_ns.tolist()
    converted = [to_kernel(rank, t) for rank, t in zip(ranks.tolist(), plain_ns, strict=True)]
    times = [round(float(time - t)) + t for (time, _), t in zip(converted, plain_ns, strict=True)]
    uncertainties = [float(uncertainty) for _, uncertainty in converted]
    return np.array(times, dtype=np.int64), np.array(uncertainties)


def _by_common_ends(run: TimingsSource, rows: Rows, ranks: list[int]) -> Alignment:
    """Align by the ends of common collectives, on the lowest rank's clock."""
    numbers = np.unique(rows["iteration"])
    sampled = numbers[:: -(-len(numbers) // _MAX_SAMPLED)]
    offsets_by_rank: dict[int, list[tuple[int, float, float]]] = {rank: [] for rank in ranks[1:]}
    by_collectives = False
    for iteration in iter_iterations(run, rows[np.isin(rows["iteration"], sampled)]):
        by_collectives |= bool(iteration.collectives)
        for rank, offset in _offsets(iteration, ranks[0]).items():
            offsets_by_rank[rank].append(offset)
    lines = {ranks[0]: _LeadLine(0, 0.0, 0.0, 0.0)}
    lines |= {rank: _fit(offsets) for rank, offsets in offsets_by_rank.items()}
    events = "collectives" if by_collectives else "exposed communication"
    method = f"the ends of shared {events}, taken as simultaneous, on rank {ranks[0]}'s clock"
    return _with_uncertainty(method, rows, partial(_subtract_leads, lines))


def _subtract_leads(
    lines: dict[int, _LeadLine], _cells: Times, ranks: Times, t_ns: Times
) -> tuple[Times, Floats]:
    """Convert times by subtracting the lead of each rank's clock."""
    times = t_ns.astype(np.int64)
    uncertainty = np.full(len(t_ns), np.inf)
    for rank, line in lines.items():
        of_rank = ranks == rank
        times[of_rank] -= np.rint(line.lead_ns(t_ns[of_rank])).astype(np.int64)
        uncertainty[of_rank] = line.uncertainty
    return times, uncertainty


def _offsets(iteration: Iteration, reference: int) -> dict[int, tuple[int, float, float]]:
    """Return, by rank, a time on its clock, the lead of the clock, and the lead's uncertainty.

    The lead is relative to the clock of the rank `reference`. All values are in nanoseconds.
    """
    ends = {int(row["rank"]): _ends(row, iteration.collectives) for row in iteration.rows}
    if reference not in ends:
        return {}
    reference_ends = ends.pop(reference)
    offsets = {}
    for rank, rank_ends in ends.items():
        shared = reference_ends.keys() & rank_ends.keys()
        if not shared:
            continue
        leads = [rank_ends[name] - reference_ends[name] for name in shared]
        latest = max(rank_ends[name] for name in shared)
        offsets[rank] = (latest, (min(leads) + max(leads)) / 2, (max(leads) - min(leads)) / 2)
    return offsets


def _ends(row: Any, collectives: dict[int, list[Any]]) -> dict[str, int]:
    """Return the end of each collective by name, in nanoseconds of the rank's clock."""
    start = int(row["start_ns"])
    if not collectives:
        # There are no records of single collectives. The wait ended with the last collective.
        end = start + int(row["iteration_ns"] - row["optimizer_ns"] - row["other_ns"])
        return {"": end}
    return {
        collective.name: start
        + (collective.finished_ns if collective.ended_ns is None else collective.ended_ns)
        for collective in collectives.get(int(row["rank"]), [])
        if collective.ranks == row["world_size"]
    }


@dataclass(frozen=True)
class _LeadLine:
    """The lead of a clock over another clock: `lead` at `origin`, plus `drift` per nanosecond."""

    origin: int
    lead: float
    drift: float
    uncertainty: float

    def lead_ns(self, t_ns: Times) -> Floats:
        """Return the lead at some times of the clock, in nanoseconds."""
        return (self.lead + self.drift * (t_ns - self.origin)).astype(np.float64)


def _fit(offsets: list[tuple[int, float, float]]) -> _LeadLine:
    """Return the line through offsets, robust against a few outliers."""
    if not offsets:
        return _LeadLine(0, 0.0, 0.0, float("inf"))
    times = np.array([time for time, _, _ in offsets], dtype=np.int64)
    leads = np.array([lead for _, lead, _ in offsets])
    uncertainties = np.array([uncertainty for _, _, uncertainty in offsets])
    origin = int(times[0])
    base = float(np.median(leads))
    # Differences from a base keep precision, because offsets may be hours in nanoseconds.
    since_s = (times - origin) / 1e9
    over_base = leads - base
    keep = np.ones(len(over_base), dtype=bool)
    slope = 0.0
    level = 0.0
    for _ in range(3):
        enough = keep.sum() >= 8 and np.ptp(since_s[keep]) > 0
        slope, level = np.polyfit(since_s[keep], over_base[keep], 1) if enough else (0.0, 0.0)
        residuals = np.abs(over_base - slope * since_s - level)
        keep = residuals <= max(3 * float(np.median(residuals)), 1.0)
    error = float(np.quantile(np.abs(over_base - slope * since_s - level)[keep], 0.9))
    uncertainty = max(error, float(np.median(uncertainties)))
    return _LeadLine(origin, base + level, slope / 1e9, uncertainty)
