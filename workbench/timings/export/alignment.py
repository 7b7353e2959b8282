"""One clock for all ranks.

Each rank's times are of its own machine's monotonic clock. Where nothing better
is given, ranks of different VMs are aligned by what they do together: a
collective ends on all of them at nearly the same moment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from workbench.timings.export.walk import Iteration, walk
from workbench.timings.store import Rows

if TYPE_CHECKING:
    from workbench.timings.export.door import Exports

_LOOKED_AT = 1024
"""Iterations, evenly spread, that an alignment by collectives looks at."""

ToKernel: TypeAlias = Callable[[int, int], tuple[float, float]]
"""From a rank and its nanoseconds to those of the common clock, and how far that may be off."""


class Clocks(Protocol):
    """Knows how the ranks' clocks stand to the kernel's."""

    def to_kernel(self, rank: int, t_ns: int) -> tuple[float, float]:
        """Return a rank's time on the kernel's clock, and its uncertainty, in nanoseconds."""


ClocksLike: TypeAlias = Clocks | ToKernel


@dataclass
class Alignment:
    """How to get from a rank's clock to the common one.

    Attributes
    ----------
    method
        How it was found, for people.
    to_common
        The map.
    uncertainty_ns
        By rank, how far times may be off against those of other ranks.
    """

    method: str
    to_common: ToKernel
    uncertainty_ns: dict[int, float] = field(default_factory=dict)

    def __call__(self, rank: int, t_ns: int) -> int:
        """Return a rank's time on the common clock."""
        return round(self.to_common(rank, t_ns)[0])


def align(run: Exports, rows: Rows, clocks: ClocksLike | None) -> Alignment:
    """Return how to align the ranks of `rows`, which `chosen` has ordered."""
    ranks = [int(rank) for rank in np.unique(rows["rank"])]
    if clocks is not None:
        found: ToKernel = getattr(clocks, "to_kernel", clocks)  # type: ignore[arg-type]
        ends = {rank: rows[rows["rank"] == rank]["start_ns"][[0, -1]].tolist() for rank in ranks}
        unsure = {rank: max(found(rank, t)[1] for t in times) for rank, times in ends.items()}
        return Alignment("clocks compared while it ran", found, unsure)
    vms = {run.vms.get(rank) for rank in ranks}
    if len(ranks) == 1 or (len(vms) == 1 and None not in vms):
        same = dict.fromkeys(ranks, 0.0)
        return Alignment("one machine: all ranks read its clock", lambda _, t: (t, 0.0), same)
    return _by_common_ends(run, rows, ranks)


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

    def to_common(rank: int, t_ns: int) -> tuple[float, float]:
        line = lines[rank]
        return t_ns - line.at(t_ns), line.uncertainty

    return Alignment(
        f"the ends of shared {what}, taken as simultaneous, on rank {ranks[0]}'s clock",
        to_common,
        {rank: line.uncertainty for rank, line in lines.items()},
    )


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
    }


@dataclass(frozen=True)
class _Line:
    """A clock's lead over another: `lead` at `origin`, growing by `drift`, give or take."""

    origin: int
    lead: float
    drift: float
    uncertainty: float

    def at(self, t_ns: int) -> float:
        """Return the lead in nanoseconds."""
        return self.lead + self.drift * (t_ns - self.origin)


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
