"""The delays of a ring's ranks in each iteration, and the phases that may explain them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.timings import noise
from workbench.timings.lateness import Lateness, Matrix, behind, lateness
from workbench.timings.store import Rows
from workbench.wire import Flag

LEAST_SHARE = 0.05
"""A phase that takes longer counts from this share of the median iteration."""
EXPLAINING = ("data", "copy", "forward", "backward", "optimizer", "other")
"""Phases that may explain why a rank is late; the others wait in `exposed`."""
AFTER_REDUCTION = ("optimizer", "other")
"""Phases after the reduction of the gradients: they delay the next iteration."""
OTHER_BATCH = 1.8
"""A cell goes on with other batches if the own work of all ranks changes by this factor."""
UNKNOWN = "unknown"
"""Stands for the phases if none of them explains why a rank is late."""


@dataclass(frozen=True)
class RingDelays:
    """The delays of a ring's ranks, and the phases that may explain them; in microseconds."""

    found: Lateness
    warm: npt.NDArray[np.bool_]
    iteration_us: npt.NDArray[np.float64]
    late: Matrix
    waited_for: Matrix
    """Lateness for which another rank waited: while the others compute, it costs nothing."""
    longer: dict[str, Matrix]

    @classmethod
    def of(cls, found: Lateness) -> RingDelays:
        """Return the delays in the iterations that all ranks of a ring have reported."""
        rows = found.rows
        late = behind(found.late_us)
        return cls(
            found,
            _warm(((rows["flags"] & int(Flag.LEFT_OUT)) == 0).all(axis=1)),
            np.median(rows["iteration_ns"], axis=1) / 1e3,
            late,
            np.minimum(late, found.waited_us.max(axis=1, keepdims=True)),
            {phase: behind(rows[f"{phase}_ns"] / 1e3) for phase in EXPLAINING},
        )

    def cells(self, least: int = noise.LENGTHS[0]) -> Iterator[tuple[int, RingDelays]]:
        """Yield the iterations of each cell, and where they begin.

        A cell that trains one model after another, or goes on with other batches, is divided.
        Cells with fewer than `least` iterations that do not warm up are too short to be judged
        alone: they are joined with each other, and with a neighbour of similar iterations.
        """
        begins = self._trainings()
        counts = np.add.reduceat(self.warm.astype(np.int64), begins)
        parts: list[int] = []
        before: tuple[float, bool] | None = None
        joined = 0
        ends = [*begins[1:].tolist(), len(self.late)]
        for begin, end, count in zip(begins.tolist(), ends, counts.tolist(), strict=True):
            usual = float(self.iteration_us[begin:end].min())  # a delay does not change it
            short = count < least
            if before is not None:
                alike = min(usual, before[0]) >= noise.ALIKE * max(usual, before[0])
                if (short and before[1]) or ((short or joined < least) and alike):
                    before, joined = (usual, short), joined + count
                    continue
            parts.append(begin)
            before, joined = (usual, short), count
        for begin, end in zip(parts, [*parts[1:], len(self.late)], strict=True):
            yield begin, self.at(slice(begin, end))

    def _trainings(self) -> npt.NDArray[np.intp]:
        """Return where a cell begins, or another model or size of batches within a cell."""
        rows = self.found.rows
        cells, sizes = rows["cell"][:, 0], rows[["bytes", "tensors"]][:, 0]
        # without the waiting: a late rank changes no other rank's own work
        own = (rows["iteration_ns"] - rows["exposed_ns"]).min(axis=1)
        begins = np.flatnonzero(np.diff(cells, prepend=cells[0] - 1))
        found = []
        for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(cells)], strict=True):
            part = slice(begin, end)
            changes = {0, *_other_models(sizes[part]), *_other_batches(own[part])}
            found += [begin + change for change in sorted(changes)]
        return np.array(found, dtype=np.intp)

    def trains_as(self, other: RingDelays) -> bool:
        """Whether most iterations have the same collectives, and take similarly long."""
        mine, its = (
            one.found.rows[["bytes", "tensors"]][len(one.late) // 2, 0] for one in (self, other)
        )
        usual = sorted(float(one.iteration_us.min()) for one in (self, other))
        return bool(mine == its and usual[0] >= noise.ALIKE * usual[1])

    def at(self, part: slice | npt.NDArray[np.intp]) -> RingDelays:
        """Return the delays in some of the iterations."""
        return RingDelays(
            Lateness(*(getattr(self.found, one.name)[part] for one in fields(Lateness))),
            _warm(self.warm[part]),
            self.iteration_us[part],
            self.late[part],
            self.waited_for[part],
            {phase: longer[part] for phase, longer in self.longer.items()},
        )

    @property
    def usual_us(self) -> float:
        """The median iteration."""
        return float(np.median(self.iteration_us[self.warm]))

    @property
    def least_us(self) -> float:
        """The shortest delay that counts."""
        return LEAST_SHARE * self.usual_us

    def excess(self, phase: str) -> Matrix:
        """Return each rank's excess over the others in a phase; for `UNKNOWN`, its lateness."""
        return self.late if phase == UNKNOWN else self.longer[phase]

    def late_for(self, phase: str, places: npt.NDArray[np.intp], column: int) -> float:
        """Return how late a rank is in the iterations that its phase in `places` delays."""
        late = float(np.median(self.waited_for[places, column]))
        after = places[places + 1 < len(self.late)] + 1
        if phase in AFTER_REDUCTION and len(after):
            late = max(late, float(np.median(self.waited_for[after, column])))
        return late


def ring_delays(rows: Rows) -> Iterator[RingDelays]:
    """Yield the delays of each ring with several ranks."""
    return (RingDelays.of(found) for found in lateness(rows) if found.late_us.shape[1] > 1)


def _other_models(sizes: npt.NDArray[Any]) -> list[int]:
    """Return where gradients of another size begin, each of which lasts for some iterations."""
    begins = np.flatnonzero(np.append(True, sizes[1:] != sizes[:-1]))
    lasting = begins[np.diff(begins, append=len(sizes)) >= noise.LENGTHS[0]]
    # sparse gradients have other sizes in between
    return [
        int(at)
        for at, before in zip(lasting[1:], lasting, strict=False)
        if sizes[at] != sizes[before]
    ]


def _other_batches(own: npt.NDArray[np.int64]) -> list[int]:
    """Return where the ranks' own work begins to take much longer or shorter, and remains so."""
    length = noise.LENGTHS[1]
    if len(own) < 2 * length:
        return []
    total = np.cumsum(np.append(0.0, np.log(np.maximum(own, 1))))
    means = (total[length:] - total[:-length]) / length
    change = np.abs(means[length:] - means[:-length])
    found = np.flatnonzero(change >= np.log(OTHER_BATCH))
    runs = np.split(found, np.flatnonzero(np.diff(found) > 1) + 1) if len(found) else []
    return [int(run[change[run].argmax()]) + length for run in runs]


def _warm(warm: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return the iterations that do not warm up; all, if there are no others."""
    return warm if warm.any() else np.ones_like(warm)
