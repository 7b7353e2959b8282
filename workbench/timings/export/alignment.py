"""One clock for all ranks.

Each rank's times are from the monotonic clock of its own machine. Without pings, ranks of
different VMs are aligned by their collectives, which end on all ranks at nearly the same time.
"""

from __future__ import annotations

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

_SAMPLED = 1024
"""Most iterations, evenly spread, for an alignment by collectives."""


@dataclass
class Alignment:
    """A conversion of the ranks' times to a common clock.

    Attributes
    ----------
    method
        Description of the method.
    to_common
        Converts arrays of cells, ranks and their nanoseconds to nanoseconds of the common clock
        and uncertainties.
    uncertainty_ns
        The largest uncertainty, by rank.
    """

    method: str
    to_common: Callable[[Times, Times, Times], tuple[Times, Floats]]
    uncertainty_ns: dict[int, float]

    def begins(self, rows: Rows) -> Times:
        """Return when each row's iteration began, on the common clock."""
        return self.to_common(rows["cell"], rows["rank"], rows["start_ns"])[0]


def align(run: TimingsSource, rows: Rows, clocks: ClocksLike | None) -> Alignment:
    """Return how to align the ranks of `rows`, which `select_rows` has ordered."""
    if clocks is not None:
        given = getattr(clocks, "to_kernel", clocks)
        if not callable(given):
            raise UsageError(
                f"clocks={clocks!r}: not clocks. Give an object with to_kernel(rank, t_ns), or "
                "such a function."
            )
        return _with_uncertainty("clocks that were given", rows, partial(_one_by_one, given))
    ranks = [int(rank) for rank in np.unique(rows["rank"])]
    names = run.vm_names()
    vms = {names.get(rank) for rank in ranks}
    if len(ranks) == 1 or (len(vms) == 1 and None not in vms):
        return _with_uncertainty("one machine: all ranks read its clock", rows, _unchanged)
    known = run.known_clocks()
    if known is not None:
        pinged = _with_uncertainty("pings from the kernel, on its clock", rows, known.to_kernel)
        if all(map(math.isfinite, pinged.uncertainty_ns.values())):
            return pinged
    return _by_common_ends(run, rows, ranks)


def _with_uncertainty(method: str, rows: Rows, to_common: Any) -> Alignment:
    """Return an alignment with its uncertainties for `rows`."""
    off = to_common(rows["cell"], rows["rank"], rows["start_ns"])[1]
    most = {int(rank): float(off[rows["rank"] == rank].max()) for rank in np.unique(rows["rank"])}
    return Alignment(method, to_common, most)


def _unchanged(_cells: Times, _ranks: Times, t_ns: Times) -> tuple[Times, Floats]:
    return t_ns.astype(np.int64), np.zeros(len(t_ns))


def _one_by_one(given: Any, _cells: Times, ranks: Times, t_ns: Times) -> tuple[Times, Floats]:
    found = [given(rank, t) for rank, t in zip(ranks.tolist(), t_ns.tolist(), strict=True)]
    times = [round(float(time - t)) + t for (time, _), t in zip(found, t_ns.tolist(), strict=True)]
    return np.array(times, dtype=np.int64), np.array([float(off) for _, off in found])


def _by_common_ends(run: TimingsSource, rows: Rows, ranks: list[int]) -> Alignment:
    """Align by the ends of common collectives, on the lowest rank's clock."""
    numbers = np.unique(rows["iteration"])
    some = numbers[:: -(-len(numbers) // _SAMPLED)]
    seen: dict[int, list[tuple[int, float, float]]] = {rank: [] for rank in ranks[1:]}
    by_collectives = False
    for iteration in iter_iterations(run, rows[np.isin(rows["iteration"], some)]):
        by_collectives |= bool(iteration.collectives)
        for rank, offset in _offsets(iteration, ranks[0]).items():
            seen[rank].append(offset)
    lines = {ranks[0]: _Line(0, 0.0, 0.0, 0.0)}
    lines |= {rank: _fit(offsets) for rank, offsets in seen.items()}
    what = "collectives" if by_collectives else "exposed communication"
    method = f"the ends of shared {what}, taken as simultaneous, on rank {ranks[0]}'s clock"
    return _with_uncertainty(method, rows, partial(_along, lines))


def _along(
    lines: dict[int, _Line], _cells: Times, ranks: Times, t_ns: Times
) -> tuple[Times, Floats]:
    times, off = t_ns.astype(np.int64), np.full(len(t_ns), np.inf)
    for rank, line in lines.items():
        own = ranks == rank
        times[own] -= np.rint(line.at(t_ns[own])).astype(np.int64)
        off[own] = line.uncertainty
    return times, off


def _offsets(iteration: Iteration, reference: int) -> dict[int, tuple[int, float, float]]:
    """Return, by rank: a time on its clock, the clock's lead, and the lead's uncertainty."""
    ends = {int(row["rank"]): _ends(row, iteration.collectives) for row in iteration.rows}
    if reference not in ends:
        return {}
    own = ends.pop(reference)
    found = {}
    for rank, theirs in ends.items():
        shared = own.keys() & theirs.keys()
        if not shared:
            continue
        leads = [theirs[name] - own[name] for name in shared]
        at = max(theirs[name] for name in shared)
        found[rank] = (at, (min(leads) + max(leads)) / 2, (max(leads) - min(leads)) / 2)
    return found


def _ends(row: Any, collectives: dict[int, list[Any]]) -> dict[str, int]:
    """Return when each collective ended on the rank's own clock, by name."""
    start = int(row["start_ns"])
    if not collectives:
        # without records of single collectives, the wait ended with the last of them
        end = start + int(row["iteration_ns"] - row["optimizer_ns"] - row["other_ns"])
        return {"": end}
    return {
        one.name: start + (one.finished_ns if one.ended_ns is None else one.ended_ns)
        for one in collectives.get(int(row["rank"]), [])
        if one.ranks == row["world_size"]
    }


@dataclass(frozen=True)
class _Line:
    """A clock's lead over another: `lead` at `origin`, plus `drift` per nanosecond."""

    origin: int
    lead: float
    drift: float
    uncertainty: float

    def at(self, t_ns: Times) -> Floats:
        """Return the lead in nanoseconds."""
        return (self.lead + self.drift * (t_ns - self.origin)).astype(np.float64)


def _fit(offsets: list[tuple[int, float, float]]) -> _Line:
    """Return the line through offsets, robust against a few outliers."""
    if not offsets:
        return _Line(0, 0.0, 0.0, float("inf"))
    times = np.array([at for at, _, _ in offsets], dtype=np.int64)
    leads = np.array([lead for _, lead, _ in offsets])
    halves = np.array([half for _, _, half in offsets])
    origin, base = int(times[0]), float(np.median(leads))
    # differences from a base, because offsets may be hours in nanoseconds
    since, over = (times - origin) / 1e9, leads - base
    keep = np.ones(len(over), dtype=bool)
    slope, level = 0.0, 0.0
    for _ in range(3):
        enough = keep.sum() >= 8 and np.ptp(since[keep]) > 0
        slope, level = np.polyfit(since[keep], over[keep], 1) if enough else (0.0, 0.0)
        left = np.abs(over - slope * since - level)
        keep = left <= max(3 * float(np.median(left)), 1.0)
    off = float(np.quantile(np.abs(over - slope * since - level)[keep], 0.9))
    return _Line(origin, base + level, slope / 1e9, max(off, float(np.median(halves))))
