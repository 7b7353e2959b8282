"""Which ranks the others waited for, when, by how much, and in which phase they differ.

A rank is named where one of its phases takes longer than the median of the
others, out of the noise of that phase (`noise`), and where it is late for its
last collective for it (`lateness`): what a rank spends beside the others'
waiting costs nothing. Where ranks share cores the others compute for longer
while one sleeps, and wait for less than its excess: both are told.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.timings import noise
from workbench.timings.lateness import Lateness, Matrix, behind, lateness
from workbench.timings.store import Rows
from workbench.wire import Flag

LEAST_SHARE = 0.05
"""A phase is longer by at least this share of the median iteration, of its stretch too..."""
CONFIRMED = 0.5
"""...it is this share of what the others wait for, and they wait for this share of it..."""
CONTENDED = 0.2
"""...or for this share of it, where their waiting alone is `LEAST_SHARE` of the iteration, for at
least half of the run: what else uses the cores delays a rank for a short stretch..."""
CLEAR = 1.5
"""...which is so many times the noise of being late."""
LINK_TIMES = 2.0
"""A link is slow where collectives take so many times what they took before or after..."""
LINK_LEAST = 20
"""...in so many iterations..."""
LINK_ALIKE = 0.3
"""...most of which differ by no more than this share: a rate is steady, a busy core is not."""
ONCE_LEAST_US = 100_000.0
"""One late iteration is told from here on: a busy machine's scheduler takes less..."""
ONCE_NOISE = 10.0
"""...where it is so many times the noise of one iteration..."""
ONCE_SHARE = 1.0
"""...this share of the median iteration or more..."""
ONCE_TIMES = 4.0
"""...and this many times what the worst of its neighbours, but two, are late..."""
ONCE_NEIGHBOURS = 50
"""...which are so many iterations on either side."""

UNKNOWN = "unknown"
_KINDS = {
    "data": "slow data",
    "copy": "slow data",
    "forward": "slow compute",
    "backward": "slow compute",
    "optimizer": "slow compute",
    "other": "slow compute",
}
_AFTER = ("optimizer", "other")
"""What is done in them once the gradients are reduced delays the next iteration."""
_ENDS = 2


@dataclass(frozen=True)
class Straggler:
    """A stretch of iterations in which the others waited for one rank, or all for a link.

    Attributes
    ----------
    rank
        Who it is; -1 for a link: a ring's collectives go through all links,
        and take equally long on all ranks, so these times do not tell which.
    phase
        Where it takes longer than the others; ``"unknown"`` where no phase
        of its own explains why it is late; ``"communication"`` for a link.
    excess_us
        How much longer that phase takes than the median of the others: the
        median over the stretch. For a link: than in the rest of the run.
    first_iteration, last_iteration
        The stretch.
    kind
        ``"slow data"``, ``"slow compute"``, ``"slow link"``, or ``"unknown"``.
        What a rank does in no phase of training (``"other"``) counts as
        compute. A link is told where it is slow for a part of the run only:
        whether it always was, `fabric` can tell.
    how_often
        ``"one iteration"``, ``"always"``, or ``"from 10 to 29"``.
    late_us
        How much later than the median of the others it came to the collectives of an
        iteration, as far as one of them waited for it; less than the excess
        where that ran beside communication.
    uncertainty_us
        How far `late_us` may be off by the clocks; NaN where it was told
        without them.
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


class _Ring:
    """The delays of a ring's ranks, and the phases that may explain them; in microseconds."""

    def __init__(self, found: Lateness) -> None:
        rows = found.rows
        self.found = found
        self.warm = ((rows["flags"] & int(Flag.FIRST_OF_CELL)) == 0).all(axis=1)
        if not self.warm.any():
            self.warm[:] = True
        self.iteration_us = np.median(rows["iteration_ns"], axis=1) / 1e3
        self.usual_us = float(np.median(self.iteration_us[self.warm]))
        self.late = behind(found.late_us)
        # what a rank is late while the others compute costs nothing
        self.waited_for = np.minimum(self.late, found.waited_us.max(axis=1, keepdims=True))
        self.longer = {
            phase: behind(rows[f"{phase}_ns"] / 1e3)
            for phase in _KINDS
            if f"{phase}_ns" in (rows.dtype.names or ())
        }

    @property
    def least_us(self) -> float:
        return LEAST_SHARE * self.usual_us

    def excess(self, phase: str) -> Matrix:
        """Return how much longer than the others a rank takes in a phase; being late, for none."""
        return self.late if phase == UNKNOWN else self.longer[phase]

    def late_for(self, phase: str, places: npt.NDArray[np.intp], column: int) -> float:
        """Return how late a rank is in the iterations that a phase of `places` delays."""
        late = float(np.median(self.waited_for[places, column]))
        after = places[places + 1 < len(self.late)] + 1
        if phase in _AFTER and len(after):
            late = max(late, float(np.median(self.waited_for[after, column])))
        return late


def find(rows: Rows) -> list[dict[str, Any]]:
    """Return the stretches and the single iterations, as fields of `Straggler`, in order."""
    found: list[Straggler] = []
    for ring in _rings(rows):
        covered = np.zeros(len(ring.late), dtype=bool)
        by_link = covered.copy()
        for straggler, places in _slow_links(ring):
            by_link[places[0] : places[-1] + 2] = True
            found.append(straggler)
        for straggler, places in _stretches(ring):
            if straggler.phase == UNKNOWN and by_link[places].mean() > CONFIRMED:
                continue  # what a slow link brings ends later on one side, which then starts later
            covered[places[0] : places[-1] + 2] = True  # and what it delays
            found.append(straggler)
        found += _single(ring, covered)
    return [asdict(one) for one in sorted(found, key=lambda one: one.first_iteration)]


def throughout(rows: Rows) -> tuple[int | None, float | None]:
    """Return the rank that delays the newest ring throughout, and how late it is."""
    ring = max(_rings(rows), key=lambda one: int(one.found.iterations[-1]), default=None)
    if ring is None:
        return None, None
    warm, late = np.flatnonzero(ring.warm), []
    for phase, longer in ring.longer.items():
        for column in np.flatnonzero(noise.throughout(longer[warm], ring.least_us)):
            if _confirmed(ring, phase, warm, int(column)):
                delay = ring.late_for(phase, warm, int(column))
                late.append((delay, int(ring.found.ranks[column])))
    if not late:
        return None, None
    delay, rank = max(late)
    return rank, delay


def _rings(rows: Rows) -> Iterator[_Ring]:
    return (_Ring(found) for found in lateness(rows) if found.late_us.shape[1] > 1)


def _stretches(ring: _Ring) -> Iterator[tuple[Straggler, npt.NDArray[np.intp]]]:
    """Return the stretches of every phase, each rank's strongest first; they do not overlap."""
    candidates = [
        (*found, phase)
        for phase, longer in ring.longer.items()
        for found in noise.stretches(longer, ring.least_us, ring.warm)
    ]
    late = noise.stretches(ring.late, ring.least_us, ring.warm)
    unexplained = [(*found, UNKNOWN) for found in late]
    taken = np.zeros(ring.late.shape, dtype=bool)
    for _, column, first, last, phase in (
        *sorted(candidates, reverse=True),
        *sorted(unexplained, reverse=True),
    ):
        places = np.arange(first, last + 1)
        least = LEAST_SHARE * float(np.median(ring.iteration_us[places]))
        if (
            taken[places, column].any()
            or _median(ring.excess(phase), places, column) < least
            or not _confirmed(ring, phase, places, column)
        ):
            continue
        taken[places, column] = True
        yield _describe(ring, phase, places, column), places


def _confirmed(ring: _Ring, phase: str, places: npt.NDArray[np.intp], column: int) -> bool:
    """Whether the others waited for the phase, or, for none, that no phase explains the wait."""
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


def _single(ring: _Ring, covered: npt.NDArray[np.bool_]) -> Iterator[Straggler]:
    """Return single late iterations that nothing near them is like, where a phase explains them."""
    worst = np.where(covered | ~ring.warm, 0.0, ring.late.max(axis=1))
    usual = float(noise.noise(ring.late[ring.warm]).max())
    least = max(ONCE_LEAST_US, ONCE_NOISE * usual, ONCE_SHARE * ring.usual_us)
    for place in np.flatnonzero(worst >= least):
        begin = max(0, place - ONCE_NEIGHBOURS)
        near = np.sort(worst[begin : place + ONCE_NEIGHBOURS + 1])
        # of those but the two worst, one of which this may be
        if len(near) < 3 or worst[place] < ONCE_TIMES * near[-3]:
            continue
        column = int(ring.late[place].argmax())
        causes = [(ring.longer[phase][place, column], phase, place) for phase in ring.longer]
        if place:
            before = place - 1
            causes += [(ring.longer[phase][before, column], phase, before) for phase in _AFTER]
        excess, phase, cause = max(causes)
        if excess >= CONFIRMED * worst[place]:  # else it may be a moment of the network's
            yield _describe(ring, phase, np.array([cause]), column)


def _slow_links(ring: _Ring) -> Iterator[tuple[Straggler, npt.NDArray[np.intp]]]:
    """Return where collectives take much longer though every rank has come."""
    found = ring.found
    sizes = found.rows["bytes"][:, 0]
    for size in np.unique(sizes[ring.warm]):
        same = np.flatnonzero((sizes == size) & ring.warm)
        service = found.service_us[same, np.newaxis]
        usual = float(np.quantile(service, 0.1))
        least = max(ring.least_us, (LINK_TIMES - 1) * usual)
        counted, end = np.ones(len(same), dtype=bool), -1
        slow = noise.stretches(service - usual, least, counted)
        for first, last in sorted(
            (first, last) for _, _, first, last in slow if last - first >= LINK_LEAST - 1
        ):
            if first <= end:
                continue
            end, places = last, same[first : last + 1]
            excess = found.service_us[places] - usual
            middle = float(np.median(excess))
            if (np.abs(excess - middle) <= LINK_ALIKE * middle).mean() < noise.OFTEN:
                continue
            link = Straggler(
                rank=-1,
                phase="communication",
                excess_us=middle,
                first_iteration=int(found.iterations[places[0]]),
                last_iteration=int(found.iterations[places[-1]]),
                kind="slow link",
                how_often=_how_often(found, places),
                late_us=0.0,
                uncertainty_us=float("nan"),
            )
            yield link, places


def _describe(ring: _Ring, phase: str, places: npt.NDArray[np.intp], column: int) -> Straggler:
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
    # but for warm-up and what is in time by chance
    if places[0] <= _ENDS and places[-1] >= len(found.rows) - 1 - _ENDS:
        return "always"
    return f"from {found.iterations[places[0]]} to {found.iterations[places[-1]]}"
