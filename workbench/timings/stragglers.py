"""Finds stragglers: the ranks that the others waited for, when, for how long, and in which phase.

A rank is a straggler if one of its phases takes longer than the median of the other ranks, by
more than the noise of that phase (`noise`), and if that makes it late for its last collective
(`lateness`). A longer phase that delays no other rank costs nothing. If ranks share cores, the
others compute longer while one rank sleeps, and wait for less than its excess. So both the excess
and the delay are reported.

Each training is compared with itself, because 10 ms are much in iterations of 20 ms, but only noise
in iterations of 500 ms.
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
    MIN_SHARE,
    UNKNOWN,
    RingDelays,
    ring_delays,
)
from workbench.timings.slow_links import slow_links
from workbench.timings.store import Rows

CONFIRMED_SHARE = 0.5
"""Minimum share of the longer phase that the others wait for, and minimum share of the waiting that
the phase explains."""
CONTENDED_SHARE = 0.2
"""Minimum share of the longer phase that the others wait for, if the rank is late in at least half
of its cell and the waiting is at least `MIN_SHARE` of the iteration. The share is lower because
ranks that share cores compute longer while they would otherwise wait."""
MIN_LATENESS_NOISE_RATIO = 1.5
"""Minimum ratio of the waiting of the others to the noise of lateness."""
MIN_SINGLE_US = 100_000.0
"""Minimum lateness of a single iteration that is reported, because the scheduler of a busy VM
delays for less time."""
MIN_SINGLE_NOISE_RATIO = 10.0
"""Minimum ratio of the lateness of a single iteration to the noise of one iteration."""
MIN_SINGLE_SHARE = 1.0
"""Minimum ratio of the lateness of a single iteration to the median iteration."""
MIN_SINGLE_RATIO = 4.0
"""Minimum ratio of the lateness of a single iteration to the third-latest neighbour."""
MIN_SINGLE_ITERATIONS = 16
"""Minimum number of iterations that make a single late iteration clear."""
NEIGHBOURS = 50
"""Number of neighbouring iterations on either side, also of the border of two cells."""

PAUSE = "pause"
"""The kind of a pause of a VM."""

_KINDS = {
    **dict.fromkeys(EXPLAINING, "slow compute"),
    **dict.fromkeys(("data", "copy"), "slow data"),
}
"""The kind of a straggler, by its phase."""
_ENDS = 2
"""Number of iterations at either end of a run that need not be late if a rank is always late."""


@dataclass(frozen=True)
class Straggler:
    """A span of iterations where the other ranks waited for one rank, or all ranks for a link.

    Attributes
    ----------
    rank
        The rank; -1 for a link or a VM. The collectives of a ring use all links and take equally
        long on all ranks, so their times do not show which link is slow.
    phase
        The phase that takes longer; ``"unknown"`` if no phase explains why the rank is late;
        ``"communication"`` for a link; ``"unknown"`` for a VM, which may pause in any phase.
    excess_us
        How much longer the phase takes than the median of the other ranks: the median over the
        span. For a link, how much longer communication takes than in the rest of the run; for a VM,
        the length of its pause.
    first_iteration, last_iteration
        The first and the last iteration of the span.
    kind
        ``"slow data"``, ``"slow compute"`` (also for ``"other"``), ``"slow link"``, ``"pause"``
        of a VM (see `pauses`), or ``"unknown"``. A link is only reported if it is slow in a part
        of the run; `fabric` finds a link that is always slow.
    how_often
        ``"one iteration"``, ``"always"``, or for example ``"from 10 to 29"``.
    late_us
        Delay of the rank's submissions after the median of the others, limited to the time that
        another rank waited for it; less than the excess if the excess overlapped with
        communication.
    uncertainty_us
        Uncertainty of `late_us` that the clocks cause; NaN if clocks were not used.
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
    """Iterations where a rank delays the others: ascending indices into the ring's iterations."""

    column: int
    phase: str
    indices: npt.NDArray[np.intp]


def find(rows: Rows, vms: Mapping[int, str] | None = None) -> list[dict[str, Any]]:
    """Return spans and single iterations as fields of `Straggler`, by first iteration.

    `vms` has the host name of each rank's VM; without it, no pause of a VM is recognized.
    """
    stragglers: list[Straggler] = []
    for ring in ring_delays(rows):
        covered = np.zeros(len(ring.late), dtype=bool)
        by_link = covered.copy()
        for indices, excess_us in slow_links(ring):
            by_link[indices[0] : indices[-1] + 2] = True
            stragglers.append(_of_all(ring, indices, excess_us, "communication", "slow link"))
        # a slow link delays one of its ends, which then begins the next iteration late
        spans = [
            span
            for span in _spans_of_cells(ring)
            if span.phase != UNKNOWN or by_link[span.indices].mean() <= CONFIRMED_SHARE
        ]
        for span in spans:
            covered[span.indices[0] : span.indices[-1] + 2] = True  # and the iteration it delays
        for pause in find_pauses(ring, vms or {}):
            covered[pause.indices[0] : pause.indices[-1] + 2] = True
            stragglers.append(
                _of_all(
                    ring,
                    pause.indices,
                    pause.length_us,
                    UNKNOWN,
                    PAUSE,
                    late_us=pause.waited_us,
                    vm=pause.vm,
                )
            )
        spans += [
            _Span(span.column, span.phase, span.indices + begin)
            for begin, cell in ring.cells(MIN_SINGLE_ITERATIONS)
            for span in _single(cell, covered[begin : begin + len(cell.late)])
        ]
        stragglers += (_describe(ring, *span) for span in spans)
    stragglers.sort(key=lambda straggler: straggler.first_iteration)
    return [asdict(straggler) for straggler in stragglers]


def always_late(rings: Iterable[Lateness]) -> tuple[int | None, float | None]:
    """Return the rank that delays all iterations of the newest ring, and by how much; or None."""
    several = (ring for ring in rings if len(ring.ranks) > 1)
    newest = max(several, key=lambda ring: int(ring.iterations[-1]), default=None)
    parts = [] if newest is None else RingDelays.of(newest).cells()
    cells = [cell for _, cell in parts if cell.warm.sum() >= noise.LENGTHS[0]]
    if not cells:
        return None, None
    clear, delays = map(np.array, zip(*map(_delays, cells), strict=True))
    lengths = np.array([cell.warm.sum() for cell in cells])
    often = (clear * lengths[:, np.newaxis]).sum(axis=0) >= noise.MIN_HIGH_SHARE * lengths.sum()
    means = np.where(often & (delays > 0).all(axis=0), np.average(delays, 0, lengths), 0.0)
    column = int(means.argmax())
    max_delay = float(means.max())
    return (int(cells[0].lateness.ranks[column]), max_delay) if max_delay else (None, None)


def _delays(ring: RingDelays) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64]]:
    """Return a mask of the ranks that clearly delay all iterations, and each rank's delay or 0."""
    warm = np.flatnonzero(ring.warm)
    delays = np.zeros(ring.late.shape[1])
    for phase, longer in ring.longer.items():
        for column in np.flatnonzero(
            noise.are_always_high(longer[warm], ring.min_delay_us)
        ).tolist():
            if _confirmed(ring, phase, warm, column):
                delays[column] = max(delays[column], ring.late_for(phase, warm, column))
    weak = np.median(ring.waited_for[warm], axis=0)
    weak[weak < ring.min_delay_us] = 0.0
    return delays > 0, np.where(delays > 0, delays, weak)


def _spans_of_cells(ring: RingDelays) -> Iterator[_Span]:
    """Yield the spans of all cells; a span that continues in the next cell is one span."""
    chains: list[list[_Span]] = []
    ends: dict[tuple[int, str], list[_Span]] = {}
    for begin, cell in ring.cells():
        cell_ends = {}
        for inside in sorted(_spans(cell), key=lambda span: int(span.indices[0])):
            span = inside._replace(indices=inside.indices + begin)
            before = ends.pop((span.column, span.phase), None)
            if before is None or not _continues(ring, before[-1], span):
                before = []
                chains.append(before)
            before.append(span)
            cell_ends[span.column, span.phase] = before
        ends |= cell_ends
    spans = [
        chain[0]._replace(indices=np.concatenate([span.indices for span in chain]))
        for chain in chains
    ]
    for across in _spans_across_cells(ring):
        others = [span for span in spans if span.column != across.column or _apart(span, across)]
        same = [span for span in spans if all(span is not other for other in others)]
        if all(span.phase == across.phase for span in same):
            indices = np.unique(np.concatenate([span.indices for span in (*same, across)]))
            spans = [*others, across._replace(indices=indices)]
    yield from spans


def _apart(a: _Span, b: _Span) -> bool:
    """Whether two spans do not overlap."""
    return bool(a.indices[0] > b.indices[-1] or b.indices[0] > a.indices[-1])


def _spans_across_cells(ring: RingDelays) -> Iterator[_Span]:
    """Yield the spans of one training that begin in one cell and end in a later cell."""
    for (_, before), (border, after) in pairwise(ring.cells()):
        if before.trains_as(after):
            begin = border - min(len(before.late), NEIGHBOURS)
            end = border + min(len(after.late), NEIGHBOURS)
            for span in _spans(ring.at(slice(begin, end))):
                if span.indices[0] + begin < border <= span.indices[-1] + begin:
                    yield span._replace(indices=span.indices + begin)


def _continues(ring: RingDelays, before: _Span, span: _Span) -> bool:
    """Whether a span begins where a span of an earlier cell ends, and has a similar excess."""
    excess = ring.excess(span.phase)
    sizes = [_median(excess, part.indices, part.column) for part in (before, span)]
    near = span.indices[0] - before.indices[-1] <= noise.LENGTHS[0]
    return bool(near and min(sizes) >= noise.SIMILARITY * max(sizes))


def _spans(ring: RingDelays) -> Iterator[_Span]:
    """Yield the spans of all phases, the strongest first; the spans of a rank do not overlap."""
    names = [*ring.longer, UNKNOWN]
    ranks = ring.late.shape[1]
    excess = np.hstack([ring.excess(phase) for phase in names])
    # spans of phases come before spans of `UNKNOWN`, so that a phase explains a span if possible
    candidates = sorted(
        noise.spans(excess, ring.min_delay_us, ring.warm),
        key=lambda span: (span[1] < ranks * len(ring.longer), span),
        reverse=True,
    )
    covered = np.zeros(ring.late.shape, dtype=bool)
    for _, stacked_column, first, last in candidates:
        phase = names[stacked_column // ranks]
        column = stacked_column % ranks
        indices = np.arange(first, last + 1)
        min_excess_us = MIN_SHARE * float(np.median(ring.iteration_us[indices]))
        if (
            covered[indices, column].any()
            or _median(ring.excess(phase), indices, column) < min_excess_us
            or not _confirmed(ring, phase, indices, column)
        ):
            continue
        covered[indices, column] = True
        yield _Span(column, phase, indices)


def _confirmed(ring: RingDelays, phase: str, indices: npt.NDArray[np.intp], column: int) -> bool:
    """Whether the others waited for the phase; for `UNKNOWN`, that no phase explains it."""
    if phase == UNKNOWN:
        explained = sum(_median(longer, indices, column) for longer in ring.longer.values())
        late = _median(ring.late, indices, column)
        return explained < CONFIRMED_SHARE * late <= ring.late_for(phase, indices, column)
    late = ring.late_for(phase, indices, column)
    length = max(length for length in noise.LENGTHS if length <= len(indices))
    if late < MIN_LATENESS_NOISE_RATIO * noise.noise(ring.late[ring.warm], length)[column]:
        return False
    excess = _median(ring.longer[phase], indices, column)
    min_late_us = MIN_SHARE * float(np.median(ring.iteration_us[indices]))
    lasting = 2 * len(indices) >= ring.warm.sum()
    share = CONTENDED_SHARE if lasting and late >= min_late_us else CONFIRMED_SHARE
    return late >= share * excess and excess >= CONFIRMED_SHARE * late


def _single(ring: RingDelays, covered: npt.NDArray[np.bool_]) -> Iterator[_Span]:
    """Yield single late iterations without similar neighbours, if a phase explains them."""
    worst = np.where(covered | ~ring.warm, 0.0, ring.late.max(axis=1))
    usual = float(noise.noise(ring.late[ring.warm]).max())
    min_late_us = max(
        MIN_SINGLE_US, MIN_SINGLE_NOISE_RATIO * usual, MIN_SINGLE_SHARE * ring.usual_us
    )
    for index in np.flatnonzero(worst >= min_late_us):
        begin = max(0, index - NEIGHBOURS)
        near = np.sort(worst[begin : index + NEIGHBOURS + 1])
        # compared with the third-latest iteration, because two of the neighbours may be as late
        if len(near) < 3 or worst[index] < MIN_SINGLE_RATIO * near[-3]:
            continue
        column = int(ring.late[index].argmax())
        causes = [(ring.longer[phase][index, column], phase, index) for phase in ring.longer]
        if index:
            before = index - 1
            causes += [
                (ring.longer[phase][before, column], phase, before) for phase in AFTER_REDUCTION
            ]
        excess, phase, cause = max(causes)
        if excess >= CONFIRMED_SHARE * worst[index]:  # otherwise the network may have been slow
            yield _Span(column, phase, np.array([cause]))


def _of_all(
    ring: RingDelays,
    indices: npt.NDArray[np.intp],
    excess_us: float,
    *cause: str,
    late_us: float = 0.0,
    vm: str = "",
) -> Straggler:
    """Return the straggler of a link or VM; `cause` is the phase and the kind."""
    phase, kind = cause
    first, last = (int(ring.lateness.iterations[index]) for index in indices[[0, -1]])
    how_often = _how_often(ring.lateness, indices)
    return Straggler(
        *(-1, phase, excess_us, first, last, kind, how_often, late_us, float("nan"), vm)
    )


def _describe(
    ring: RingDelays, column: int, phase: str, indices: npt.NDArray[np.intp]
) -> Straggler:
    """Return the straggler of a span; the parameters are the fields of `_Span`."""
    delays = ring.lateness
    warm = indices[ring.warm[indices]]
    inner = warm if len(warm) else indices
    late = ring.late_for(phase, inner, column)
    bounds = delays.uncertainty_us[inner]
    return Straggler(
        rank=int(delays.ranks[column]),
        phase=phase,
        excess_us=_median(ring.excess(phase), inner, column),
        first_iteration=int(delays.iterations[indices[0]]),
        last_iteration=int(delays.iterations[indices[-1]]),
        kind=_KINDS.get(phase, UNKNOWN),
        how_often=_how_often(delays, indices),
        late_us=late,
        uncertainty_us=float(np.median(bounds)) if np.isfinite(bounds).all() else float("nan"),
    )


def _median(values: Matrix, indices: npt.NDArray[np.intp], column: int) -> float:
    return float(np.median(values[indices, column]))


def _how_often(delays: Lateness, indices: npt.NDArray[np.intp]) -> str:
    """Return the text of `Straggler.how_often`."""
    if len(indices) == 1:
        return "one iteration"
    # at the ends, a warm-up or chance may hide that the rank is late
    if indices[0] <= _ENDS and indices[-1] >= len(delays.rows) - 1 - _ENDS:
        return "always"
    return f"from {delays.iterations[indices[0]]} to {delays.iterations[indices[-1]]}"
