"""One clock for all ranks.

Each rank's times are of its own machine's monotonic clock. Where nothing better
is given, ranks of different VMs are aligned by what they do together: a
collective ends on all of them at nearly the same moment.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from workbench.timings.export.walk import Iteration, walk
from workbench.timings.store import Rows

if TYPE_CHECKING:
    from workbench.timings.export.door import Exports

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_LOOKED_AT = 1024
"""Iterations, evenly spread, that an alignment by collectives looks at."""

ToKernel: TypeAlias = Callable[[int, int], tuple[Any, Any]]
"""From a rank and its nanoseconds to those of the common clock, and how far that may be off."""


class Clocks(Protocol):
    """Knows how the ranks' clocks stand to the kernel's."""

    def to_kernel(self, rank: int, t_ns: int, /) -> tuple[Any, Any]:
        """Return a rank's time on the kernel's clock, and its uncertainty, in nanoseconds."""


ClocksLike: TypeAlias = Clocks | ToKernel


class CellClocksLike(Protocol):
    """Knows the same of all ranks that a cluster ever had, by the cells that ran on them."""

    def to_kernel(self, cells: Ints, ranks: Ints, t_ns: Ints, /) -> tuple[Ints, Floats]:
        """Return times on the kernel's clock, and their uncertainty, infinite where not known."""


@dataclass
class Alignment:
    """How to get from the ranks' clocks to a common one.

    Attributes
    ----------
    method
        How it was found, for people.
    to_common
        From arrays of cells, ranks and their nanoseconds to the common clock's
        nanoseconds, and how far each may be off against those of other ranks.
    uncertainty_ns
        By rank, the most of these.
    """

    method: str
    to_common: Callable[[Ints, Ints, Ints], tuple[Ints, Floats]]
    uncertainty_ns: dict[int, float]

    def begins(self, rows: Rows) -> Ints:
        """Return when each row's iteration began."""
        return self.to_common(rows["cell"], rows["rank"], rows["start_ns"])[0]


def align(run: Exports, rows: Rows, clocks: ClocksLike | None) -> Alignment:
    """Return how to align the ranks of `rows`, which `chosen` has ordered."""
    if clocks is not None:
        given: ToKernel = getattr(clocks, "to_kernel", clocks)  # type: ignore[arg-type]
        return _tried("clocks that were given", rows, partial(_one_by_one, given))
    ranks = [int(rank) for rank in np.unique(rows["rank"])]
    places = run.places()
    vms = {places.get(rank) for rank in ranks}
    if len(ranks) == 1 or (len(vms) == 1 and None not in vms):
        return _tried("one machine: all ranks read its clock", rows, _as_they_are)
    known = run.known_clocks()
    if known is not None:
        pinged = _tried("pings from the kernel, on its clock", rows, known.to_kernel)
        if all(map(math.isfinite, pinged.uncertainty_ns.values())):
            return pinged
    return _by_common_ends(run, rows, ranks)


def _tried(method: str, rows: Rows, to_common: Any) -> Alignment:
    """Return an alignment with the uncertainty that it states for `rows`."""
    off = to_common(rows["cell"], rows["rank"], rows["start_ns"])[1]
    most = {int(rank): float(off[rows["rank"] == rank].max()) for rank in np.unique(rows["rank"])}
    return Alignment(method, to_common, most)


def _as_they_are(_cells: Ints, _ranks: Ints, t_ns: Ints) -> tuple[Ints, Floats]:
    return t_ns.astype(np.int64), np.zeros(len(t_ns))


def _one_by_one(given: ToKernel, _cells: Ints, ranks: Ints, t_ns: Ints) -> tuple[Ints, Floats]:
    found = [given(rank, t) for rank, t in zip(ranks.tolist(), t_ns.tolist(), strict=True)]
    times = [round(float(time - t)) + t for (time, _), t in zip(found, t_ns.tolist(), strict=True)]
    return np.array(times, dtype=np.int64), np.array([float(off) for _, off in found])


def _by_common_ends(run: Exports, rows: Rows, ranks: list[int]) -> Alignment:
    """Align by what ends together; the lowest rank's clock is the common one."""
    numbers = np.unique(rows["iteration"])
    some = numbers[:: -(-len(numbers) // _LOOKED_AT)]
    seen: dict[int, list[tuple[int, float, float]]] = {rank: [] for rank in ranks[1:]}
    by_collectives = False
    for iteration in walk(run, rows[np.isin(rows["iteration"], some)]):
        by_collectives |= bool(iteration.collectives)
        for rank, offset in _offsets(iteration, ranks[0]).items():
            seen[rank].append(offset)
    lines = {ranks[0]: _Line(0, 0.0, 0.0, 0.0)}
    lines |= {rank: _fit(offsets) for rank, offsets in seen.items()}
    what = "collectives" if by_collectives else "exposed communication"
    method = f"the ends of shared {what}, taken as simultaneous, on rank {ranks[0]}'s clock"
    return _tried(method, rows, partial(_along, lines))


def _along(lines: dict[int, _Line], _cells: Ints, ranks: Ints, t_ns: Ints) -> tuple[Ints, Floats]:
    times, off = t_ns.astype(np.int64), np.full(len(t_ns), np.inf)
    for rank, line in lines.items():
        own = ranks == rank
        times[own] -= np.rint(line.at(t_ns[own])).astype(np.int64)
        off[own] = line.uncertainty
    return times, off


def _offsets(iteration: Iteration, reference: int) -> dict[int, tuple[int, float, float]]:
    """Return, by rank: a time on its clock, how far that is ahead, and how far this may be off."""
    ends = {int(row["rank"]): _ends(row, iteration.collectives) for row in iteration.rows}
    if reference not in ends:
        return {}
    own = ends.pop(reference)
    found = {}
    for rank, theirs in ends.items():
        shared = own.keys() & theirs.keys()
        if not shared:
            continue
        # each end lies in a bracket on either clock: the offset lies in the cut of all
        low = max(theirs[name][0] - own[name][1] for name in shared)
        high = min(theirs[name][1] - own[name][0] for name in shared)
        at = max(theirs[name][1] for name in shared)
        found[rank] = (at, (low + high) / 2, abs(high - low) / 2)
    return found


def _ends(row: Any, collectives: dict[int, list[Any]]) -> dict[str, tuple[int, int]]:
    """Return the bracket of each collective's end on the rank's own clock, by name."""
    start = int(row["start_ns"])
    if not collectives:
        # single collectives are not kept: the last of them ended with the wait for it
        end = start + int(row["iteration_ns"] - row["optimizer_ns"] - row["other_ns"])
        return {"": (end, end)}
    return {
        one.name: (start + one.unfinished_ns, start + one.finished_ns)
        for one in collectives.get(int(row["rank"]), [])
        if one.ranks == row["world_size"]
    }


@dataclass(frozen=True)
class _Line:
    """A clock's lead over another: `lead` at `origin`, growing by `drift`, give or take."""

    origin: int
    lead: float
    drift: float
    uncertainty: float

    def at(self, t_ns: Ints) -> Floats:
        """Return the lead in nanoseconds."""
        return (self.lead + self.drift * (t_ns - self.origin)).astype(np.float64)


def _fit(offsets: list[tuple[int, float, float]]) -> _Line:
    """Return the line through offsets; a few that are far off do not bend it."""
    if not offsets:
        return _Line(0, 0.0, 0.0, float("inf"))
    times = np.array([at for at, _, _ in offsets], dtype=np.int64)
    leads = np.array([lead for _, lead, _ in offsets])
    halves = np.array([half for _, _, half in offsets])
    origin, base = int(times[0]), float(np.median(leads))
    # differences from a base: the offsets themselves may be hours in nanoseconds
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
