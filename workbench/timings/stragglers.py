"""Which ranks the others waited for, when, by how much, and in which phase they differ.

A rank's delay is how much later than the median of the others it was ready for
its last collective (see `lateness`). It counts where it stands out of the
iteration and out of the noise: how much delays change from one iteration to
the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.timings.lateness import Lateness, Matrix, lateness
from workbench.timings.store import Rows
from workbench.wire import Flag

LEAST_SHARE = 0.05
"""A rank is late by at least this share of the median iteration..."""
LEVELS = ((3.0, 5), (1.0, 20), (0.5, 60))
"""...and by so many standard deviations of the noise. It is named when it is late so often:
the longer a stretch, the smaller the delay that noise does not explain..."""
OFTEN = 0.7
"""...in at least this share of the stretch's iterations."""
FORGIVEN = 2
"""Iterations in a row that it may be in time by chance without ending a stretch."""
BLURRED = 0.8
"""What an iteration counts on each lower level, where stretches of several levels overlap."""
ONCE_LEAST_US = 40_000.0
"""One late iteration is told from here on: a busy machine's scheduler takes less..."""
ONCE_NOISE = 10.0
"""...where it is so many standard deviations of the noise..."""
ONCE_SHARE = 1.0
"""...this share of the median iteration or more..."""
ONCE_TIMES = 3.0
"""...and this many times what the worst of its neighbours, but two, are late..."""
ONCE_NEIGHBOURS = 50
"""...which are so many iterations on either side."""
EXPLAINED = 0.5
"""A phase explains a delay when it took this share of it longer."""

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


@dataclass(frozen=True)
class Straggler:
    """A stretch of iterations in which the others waited for one rank.

    Attributes
    ----------
    rank
        Who it is.
    phase
        Where it takes longer than the others; ``"unknown"`` where no phase
        explains the delay.
    excess_us
        Its delay: the median over the stretch's late iterations.
    first_iteration, last_iteration
        In which the others waited.
    kind
        ``"slow data"``, ``"slow compute"``, ``"slow link"``, or ``"unknown"``.
        What a rank does in no phase of training (``"other"``) counts as
        compute.
    how_often
        ``"one iteration"``, ``"always"``, or ``"from 10 to 29"``.
    uncertainty_us
        How far `excess_us` may be off by the clocks; NaN where it was told
        without them.
    """

    rank: int
    phase: str
    excess_us: float
    first_iteration: int
    last_iteration: int
    kind: str
    how_often: str
    uncertainty_us: float


@dataclass(frozen=True)
class _Delays:
    """The delays of a ring's ranks, and what to hold them against."""

    found: Lateness
    us: Matrix
    warm: npt.NDArray[np.bool_]
    iteration_us: float
    noise_us: float

    def late(self, level: float) -> npt.NDArray[np.bool_]:
        """Return where a rank is late by so many standard deviations of the noise."""
        return self.us >= max(LEAST_SHARE * self.iteration_us, level * self.noise_us)


def find(rows: Rows) -> list[dict[str, Any]]:
    """Return the stretches and the single iterations, as fields of `Straggler`, in order."""
    found: list[Straggler] = []
    for delays in _delays(rows):
        stretches = list(_stretches(delays))
        covered = np.zeros(delays.us.shape, dtype=bool)
        for column, places in stretches:
            covered[max(0, places[0] - FORGIVEN) : places[-1] + FORGIVEN + 1] = True
            found.append(_describe(delays, column, places))
        for place in _single(delays, covered):
            one = _describe(delays, int(delays.us[place].argmax()), np.array([place]))
            if one.phase != "unknown":  # else it may be a moment of the network's
                found.append(one)
    return [asdict(one) for one in sorted(found, key=lambda one: one.first_iteration)]


def throughout(rows: Rows) -> tuple[int | None, float | None]:
    """Return the rank that is late in nearly all of the newest ring's iterations, and its delay."""
    newest = max(_delays(rows), key=lambda one: int(one.found.iterations[-1]), default=None)
    if newest is None:
        return None, None
    for level, count in LEVELS:
        late = newest.late(level)[newest.warm]
        column = int(late.sum(axis=0).argmax())
        if late[:, column].mean() >= OFTEN and late[:, column].sum() >= count:
            excess = float(np.median(newest.us[newest.warm][:, column]))
            return int(newest.found.ranks[column]), excess
    return None, None


def _delays(rows: Rows) -> Iterator[_Delays]:
    for found in lateness(rows):
        if found.late_us.shape[1] < 2:
            continue
        us = found.delay_us()
        warm = ((found.rows["flags"] & int(Flag.FIRST_OF_CELL)) == 0).all(axis=1)
        if not warm.any():
            warm[:] = True
        iteration_us = float(np.median(found.rows["iteration_ns"][warm])) / 1e3
        yield _Delays(found, us, warm, iteration_us, _noise(us[warm]))


def _noise(delays: Matrix) -> float:
    """Return the standard deviation of delays from one iteration to the next.

    From the median of their changes, which neither a straggler nor single
    late iterations move.
    """
    if len(delays) < 2:
        return 0.0
    return float(1.4826 / np.sqrt(2) * np.median(np.abs(np.diff(delays, axis=0))))


def _stretches(delays: _Delays) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    """Return a rank's column and the late places of each stretch."""
    found = []
    for place, (level, least) in enumerate(LEVELS):
        late = delays.late(level)
        for column in range(late.shape[1]):
            places = np.flatnonzero(late[:, column])
            breaks = np.flatnonzero(np.diff(places) > 1 + FORGIVEN) + 1
            for part in np.split(places, breaks):
                if len(part) >= least and len(part) >= OFTEN * (part[-1] - part[0] + 1):
                    # a lower level blurs the ends: only where it reaches clearly further
                    found.append((len(part) * BLURRED**place, column, part))
    taken = np.zeros(delays.us.shape, dtype=bool)
    for _, column, part in sorted(found, key=lambda one: -one[0]):
        if not taken[part[0] : part[-1] + 1, column].any():
            taken[part[0] : part[-1] + 1, column] = True
            yield column, part


def _single(delays: _Delays, covered: npt.NDArray[np.bool_]) -> Iterator[int]:
    """Return the places of single late iterations that nothing near them is like."""
    worst = np.where(covered.any(axis=1) | ~delays.warm, 0.0, delays.us.max(axis=1))
    least = max(ONCE_LEAST_US, ONCE_NOISE * delays.noise_us, ONCE_SHARE * delays.iteration_us)
    for place in np.flatnonzero(worst >= least):
        begin = max(0, place - ONCE_NEIGHBOURS)
        near = np.sort(worst[begin : place + ONCE_NEIGHBOURS + 1])
        # of those but the two worst, one of which this may be
        if len(near) > 2 and worst[place] >= ONCE_TIMES * near[-3]:
            yield int(place)


def _describe(delays: _Delays, column: int, places: npt.NDArray[np.intp]) -> Straggler:
    found = delays.found
    warm = places[delays.warm[places]]
    excess = float(np.median(delays.us[warm if len(warm) else places, column]))
    phase = _phase(found.rows, column, places, excess)
    first, last = int(found.iterations[places[0]]), int(found.iterations[places[-1]])
    bounds = found.uncertainty_us[places]
    return Straggler(
        rank=int(found.ranks[column]),
        phase=phase,
        excess_us=excess,
        first_iteration=first,
        last_iteration=last,
        kind=_KINDS.get(phase, phase),
        how_often=_how_often(found, places),
        uncertainty_us=float(np.median(bounds)) if np.isfinite(bounds).all() else float("nan"),
    )


def _phase(rows: Rows, column: int, places: npt.NDArray[np.intp], excess_us: float) -> str:
    """Return the phase in which a rank takes most more than the median of the others."""
    others = np.arange(rows.shape[1]) != column
    more = {}
    for phase in _KINDS:
        name = f"{phase}_ns"
        if name not in (rows.dtype.names or ()):
            continue
        longer = rows[name][:, column] - np.median(rows[name][:, others], axis=1)
        more[phase] = float(np.median(longer[places]))
        before = places[places > 0] - 1
        if phase in _AFTER and len(before):
            more[phase] = max(more[phase], float(np.median(longer[before])))
    phase = max(more, key=lambda name: more[name])
    return phase if more[phase] >= EXPLAINED * excess_us * 1e3 else "unknown"


def _how_often(found: Lateness, places: npt.NDArray[np.intp]) -> str:
    if len(places) == 1:
        return "one iteration"
    # a stretch from the first that can tell, to the newest
    if places[0] <= FORGIVEN and places[-1] >= len(found.rows) - 1 - FORGIVEN:
        return "always"
    return f"from {found.iterations[places[0]]} to {found.iterations[places[-1]]}"
