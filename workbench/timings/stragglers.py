"""Which ranks the others waited for: when, for how long, and in which phase they differ.

A rank is a straggler if one of its phases takes longer than the median of the other ranks, by
more than the noise of that phase (`noise`), and if that makes it late for its last collective
(`lateness`). A longer phase that delays nobody costs nothing. If ranks share cores, the others
compute longer while one rank sleeps, and wait for less than its excess: both are reported.

Each training is compared with itself: 10 ms are much in iterations of 20 ms, and noise in 500 ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from workbench.timings import noise
from workbench.timings.lateness import Lateness, Matrix
from workbench.timings.pauses import find_pauses
from workbench.timings.ring_delays import (
    AFTER_REDUCTION,
    EXPLAINING,
    LEAST_SHARE,
    UNKNOWN,
    RingDelays,
    ring_delays,
)
from workbench.timings.slow_links import slow_links
from workbench.timings.store import Rows

CONFIRMED = 0.5
"""The others wait for at least this share of the longer phase, and the phase explains at least
this share of the waiting."""
CONTENDED = 0.2
"""The first share for a rank that is late in at least half of its cell, if waiting alone is
`LEAST_SHARE` of the iteration: ranks that share cores compute longer meanwhile."""
CLEAR = 1.5
"""The others wait for at least this many times the noise of lateness."""
ONCE_LEAST_US = 100_000.0
"""A single late iteration is reported if it is late by at least this time, because a busy
machine's scheduler delays for less..."""
ONCE_NOISE = 10.0
"""...by at least this many times the noise of one iteration..."""
ONCE_SHARE = 1.0
"""...by at least this share of the median iteration..."""
ONCE_TIMES = 4.0
"""...and by this many times the third-latest iteration of its neighbours."""
ONCE_AMONG = 16
"""Least number of iterations among which a single late one is clear."""
ONCE_NEIGHBOURS = 50
"""Number of neighbours on either side, also of the border of two cells."""

PAUSE = "pause"
"""The kind of a pause of a VM."""

_KINDS = {
    **dict.fromkeys(EXPLAINING, "slow compute"),
    **dict.fromkeys(("data", "copy"), "slow data"),
}
_ENDS = 2


@dataclass(frozen=True)
class Straggler:
    """A span of iterations in which the others waited for one rank, or all ranks for a link.

    Attributes
    ----------
    rank
        The rank; -1 for a link or a VM. A ring's collectives use all links and take equally long
        on all ranks, so their times do not show which link is slow.
    phase
        The phase that takes longer; ``"unknown"`` if no phase explains why the rank is late;
        ``"communication"`` for a link. A VM pauses in any phase: ``"unknown"``.
    excess_us
        By how much the phase exceeds the median of the other ranks: the median over the span.
        For a link, by how much communication exceeds that of the rest of the run; for a VM, the
        length of its pause.
    first_iteration, last_iteration
        The span.
    kind
        ``"slow data"``, ``"slow compute"`` (also for ``"other"``), ``"slow link"``, ``"pause"``
        of a VM (see `pauses`), or ``"unknown"``. A link is only reported if it is slow in a part
        of the run; `fabric` finds a link that is always slow.
    how_often
        ``"one iteration"``, ``"always"``, or such as ``"from 10 to 29"``.
    late_us
        Delay of the rank's submissions after the median of the others, as far as another rank
        waited for it; less than the excess if that overlapped with communication.
    uncertainty_us
        Uncertainty of `late_us` because of the clocks; NaN if clocks were not used.
    vm
        The host name of a VM that pauses; otherwise empty.
    """

    rank: int
    phase: str
    excess_us: float
    first_iteration: int
    last_iteration: int
    kind: str
    how_often: str
    late_us: float
    uncertainty_us: float
    vm: str = ""


class _Span(NamedTuple):
    """Iterations in which a rank delays the others: their places in the ring, ascending."""

    column: int
    phase: str
    places: npt.NDArray[np.intp]


def find(rows: Rows, vms: Mapping[int, str] | None = None) -> list[dict[str, Any]]:
    """Return spans and single iterations as fields of `Straggler`, by first iteration.

    `vms` are the host names of the ranks' VMs; without them no pause of a VM is recognized.
    """
    found: list[Straggler] = []
    for ring in ring_delays(rows):
        covered = np.zeros(len(ring.late), dtype=bool)
        by_link = covered.copy()
        for places, excess_us in slow_links(ring):
            by_link[places[0] : places[-1] + 2] = True
            found.append(_of_all(ring, places, excess_us, "communication", "slow link"))
        # a slow link delays one side, which then begins the next iteration late
        spans = [
            span
            for span in _spans_of_cells(ring)
            if span.phase != UNKNOWN or by_link[span.places].mean() <= CONFIRMED
        ]
        for span in spans:
            covered[span.places[0] : span.places[-1] + 2] = True  # and the iteration it delays
        for pause in find_pauses(ring, vms or {}):
            covered[pause.places[0] : pause.places[-1] + 2] = True
            found.append(_of_all(ring, *pause[1:3], UNKNOWN, PAUSE, late_us=pause[3], vm=pause.vm))
        spans += [
            _Span(one.column, one.phase, one.places + begin)
            for begin, cell in ring.cells(ONCE_AMONG)
            for one in _single(cell, covered[begin : begin + len(cell.late)])
        ]
        found += (_describe(ring, *span) for span in spans)
    return [asdict(one) for one in sorted(found, key=lambda one: one.first_iteration)]


def always_late(rings: Iterable[Lateness]) -> tuple[int | None, float | None]:
    """Return the rank that delays all iterations of the newest ring, and by how much."""
    several = (found for found in rings if len(found.ranks) > 1)
    newest = max(several, key=lambda found: int(found.iterations[-1]), default=None)
    delays_of = [] if newest is None else RingDelays.of(newest).cells()
    cells = [one for _, one in delays_of if one.warm.sum() >= noise.LENGTHS[0]]
    if not cells:
        return None, None
    clear, delays = map(np.array, zip(*map(_delays, cells), strict=True))
    lengths = np.array([one.warm.sum() for one in cells])
    often = (clear * lengths[:, np.newaxis]).sum(axis=0) >= noise.OFTEN * lengths.sum()
    means = np.where(often & (delays > 0).all(axis=0), np.average(delays, 0, lengths), 0.0)
    column, most = int(means.argmax()), float(means.max())
    return (int(cells[0].found.ranks[column]), most) if most else (None, None)


def _delays(ring: RingDelays) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64]]:
    """Return which ranks clearly delay all iterations, and by how much each rank does; or 0."""
    warm = np.flatnonzero(ring.warm)
    delays = np.zeros(ring.late.shape[1])
    for phase, longer in ring.longer.items():
        for column in np.flatnonzero(noise.are_always_high(longer[warm], ring.least_us)).tolist():
            if _confirmed(ring, phase, warm, column):
                delays[column] = max(delays[column], ring.late_for(phase, warm, column))
    weak = np.median(ring.waited_for[warm], axis=0)
    weak[weak < ring.least_us] = 0.0
    return delays > 0, np.where(delays > 0, delays, weak)


def _spans_of_cells(ring: RingDelays) -> Iterator[_Span]:
    """Yield the spans of each cell, those that continue in the next cell as one."""
    found: list[list[_Span]] = []
    ends: dict[tuple[int, str], list[_Span]] = {}
    for begin, cell in ring.cells():
        own = {}
        for inside in sorted(_spans(cell), key=lambda one: int(one.places[0])):
            span = inside._replace(places=inside.places + begin)
            before = ends.pop((span.column, span.phase), None)
            if before is None or not _continues(ring, before[-1], span):
                before = []
                found.append(before)
            before.append(span)
            own[span.column, span.phase] = before
        ends |= own
    spans = [one[0]._replace(places=np.concatenate([part.places for part in one])) for one in found]
    for across in _spans_across_cells(ring):
        others = [one for one in spans if one.column != across.column or _apart(one, across)]
        same = [one for one in spans if all(one is not other for other in others)]
        if all(one.phase == across.phase for one in same):
            places = np.unique(np.concatenate([one.places for one in (*same, across)]))
            spans = [*others, across._replace(places=places)]
    yield from spans


def _apart(one: _Span, other: _Span) -> bool:
    return bool(one.places[0] > other.places[-1] or other.places[0] > one.places[-1])


def _spans_across_cells(ring: RingDelays) -> Iterator[_Span]:
    """Yield spans that end in another cell than they begin in, of the same training."""
    for (_, before), (border, after) in pairwise(ring.cells()):
        if before.trains_as(after):
            begin = border - min(len(before.late), ONCE_NEIGHBOURS)
            for one in _spans(
                ring.at(slice(begin, border + min(len(after.late), ONCE_NEIGHBOURS)))
            ):
                if one.places[0] + begin < border <= one.places[-1] + begin:
                    yield one._replace(places=one.places + begin)


def _continues(ring: RingDelays, before: _Span, span: _Span) -> bool:
    """Whether a span begins where that of an earlier cell ends, and is of the same size."""
    sizes = [_median(ring.excess(span.phase), one.places, one.column) for one in (before, span)]
    near = span.places[0] - before.places[-1] <= noise.LENGTHS[0]
    return bool(near and min(sizes) >= noise.ALIKE * max(sizes))


def _spans(ring: RingDelays) -> Iterator[_Span]:
    """Yield the spans of all phases, the strongest first; those of a rank do not overlap."""
    names, ranks = [*ring.longer, UNKNOWN], ring.late.shape[1]
    every = np.hstack([ring.excess(phase) for phase in names])
    # a phase explains a span if one can
    candidates = sorted(
        noise.spans(every, ring.least_us, ring.warm),
        key=lambda one: (one[1] < ranks * len(ring.longer), one),
        reverse=True,
    )
    taken = np.zeros(ring.late.shape, dtype=bool)
    for _, place, first, last in candidates:
        phase, column = names[place // ranks], place % ranks
        places = np.arange(first, last + 1)
        least = LEAST_SHARE * float(np.median(ring.iteration_us[places]))
        if (
            taken[places, column].any()
            or _median(ring.excess(phase), places, column) < least
            or not _confirmed(ring, phase, places, column)
        ):
            continue
        taken[places, column] = True
        yield _Span(column, phase, places)


def _confirmed(ring: RingDelays, phase: str, places: npt.NDArray[np.intp], column: int) -> bool:
    """Whether the others waited for the phase; for `UNKNOWN`, that no phase explains it."""
    if phase == UNKNOWN:
        own = sum(_median(longer, places, column) for longer in ring.longer.values())
        late = _median(ring.late, places, column)
        return own < CONFIRMED * late <= ring.late_for(phase, places, column)
    late = ring.late_for(phase, places, column)
    length = max(one for one in noise.LENGTHS if one <= len(places))
    if late < CLEAR * noise.noise(ring.late[ring.warm], length)[column]:
        return False
    excess = _median(ring.longer[phase], places, column)
    least = LEAST_SHARE * float(np.median(ring.iteration_us[places]))
    lasting = 2 * len(places) >= ring.warm.sum()
    share = CONTENDED if lasting and late >= least else CONFIRMED
    return late >= share * excess and excess >= CONFIRMED * late


def _single(ring: RingDelays, covered: npt.NDArray[np.bool_]) -> Iterator[_Span]:
    """Yield single late iterations that a phase explains and that have no similar neighbours."""
    worst = np.where(covered | ~ring.warm, 0.0, ring.late.max(axis=1))
    usual = float(noise.noise(ring.late[ring.warm]).max())
    least = max(ONCE_LEAST_US, ONCE_NOISE * usual, ONCE_SHARE * ring.usual_us)
    for place in np.flatnonzero(worst >= least):
        begin = max(0, place - ONCE_NEIGHBOURS)
        near = np.sort(worst[begin : place + ONCE_NEIGHBOURS + 1])
        # compared with the third-latest: two of the neighbours may be as late
        if len(near) < 3 or worst[place] < ONCE_TIMES * near[-3]:
            continue
        column = int(ring.late[place].argmax())
        causes = [(ring.longer[phase][place, column], phase, place) for phase in ring.longer]
        if place:
            before = place - 1
            causes += [
                (ring.longer[phase][before, column], phase, before) for phase in AFTER_REDUCTION
            ]
        excess, phase, cause = max(causes)
        if excess >= CONFIRMED * worst[place]:  # else the network may have been slow
            yield _Span(column, phase, np.array([cause]))


def _of_all(
    ring: RingDelays,
    places: npt.NDArray[np.intp],
    excess_us: float,
    *cause: str,
    late_us: float = 0.0,
    vm: str = "",
) -> Straggler:
    """Return the straggler of a link or VM; `cause` is the phase and the kind."""
    phase, kind = cause
    first, last = (int(ring.found.iterations[place]) for place in places[[0, -1]])
    how_often = _how_often(ring.found, places)
    return Straggler(
        *(-1, phase, excess_us, first, last, kind, how_often, late_us, float("nan"), vm)
    )


def _describe(ring: RingDelays, column: int, phase: str, places: npt.NDArray[np.intp]) -> Straggler:
    found = ring.found
    warm = places[ring.warm[places]]
    inner = warm if len(warm) else places
    late = ring.late_for(phase, inner, column)
    bounds = found.uncertainty_us[inner]
    return Straggler(
        rank=int(found.ranks[column]),
        phase=phase,
        excess_us=_median(ring.excess(phase), inner, column),
        first_iteration=int(found.iterations[places[0]]),
        last_iteration=int(found.iterations[places[-1]]),
        kind=_KINDS.get(phase, UNKNOWN),
        how_often=_how_often(found, places),
        late_us=late,
        uncertainty_us=float(np.median(bounds)) if np.isfinite(bounds).all() else float("nan"),
    )


def _median(values: Matrix, places: npt.NDArray[np.intp], column: int) -> float:
    return float(np.median(values[places, column]))


def _how_often(found: Lateness, places: npt.NDArray[np.intp]) -> str:
    if len(places) == 1:
        return "one iteration"
    # at the ends, a warm-up or a chance may hide it
    if places[0] <= _ENDS and places[-1] >= len(found.rows) - 1 - _ENDS:
        return "always"
    return f"from {found.iterations[places[0]]} to {found.iterations[places[-1]]}"
