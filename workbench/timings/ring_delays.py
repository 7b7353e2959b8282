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

MIN_SHARE = 0.05
"""Minimum excess of a phase that counts, as a share of the median iteration."""
EXPLAINING = ("data", "copy", "forward", "backward", "optimizer", "other")
"""Phases that may explain why a rank is late; the ranks that wait for it wait in `exposed`."""
AFTER_REDUCTION = ("optimizer", "other")
"""Phases after the reduction of the gradients, which delay the next iteration."""
MIN_BATCH_CHANGE = 1.8
"""Minimum factor of a change in the work of all ranks that shows other batches within a cell."""
UNKNOWN = "unknown"
"""Name that replaces the phase if no phase explains why a rank is late."""


@dataclass(frozen=True)
class RingDelays:
    """The delays of a ring's ranks, and the phases that may explain them; in microseconds.

    Attributes
    ----------
    lateness
        The lateness that the delays were computed from.
    warm
        A mask of the iterations that are not a warm-up.
    iteration_us
        The median over ranks of each iteration's duration.
    late, waited_for
        Each rank's lateness compared with the median of the other ranks, and the part of this
        lateness that another rank waited for. Lateness costs nothing while the others compute.
    longer
        For each phase, how much longer it took each rank than the median of the other ranks.
    """

    lateness: Lateness
    warm: npt.NDArray[np.bool_]
    iteration_us: npt.NDArray[np.float64]
    late: Matrix
    waited_for: Matrix
    longer: dict[str, Matrix]

    @classmethod
    def of(cls, ring: Lateness) -> RingDelays:
        """Return the delays in the iterations that all ranks of a ring have reported."""
        rows = ring.rows
        late = behind(ring.late_us)
        return cls(
            ring,
            _warm(((rows["flags"] & int(Flag.LEFT_OUT)) == 0).all(axis=1)),
            np.median(rows["iteration_ns"], axis=1) / 1e3,
            late,
            np.minimum(late, ring.waited_us.max(axis=1, keepdims=True)),
            {phase: behind(rows[f"{phase}_ns"] / 1e3) for phase in EXPLAINING},
        )

    def cells(self, min_iterations: int = noise.LENGTHS[0]) -> Iterator[tuple[int, RingDelays]]:
        """Yield the index of the first iteration of each cell, and the delays in the cell.

        A cell that trains one model after another, or continues with other batches, is divided.
        Cells with fewer than `min_iterations`, not counting warm-ups, are too short to be assessed
        alone. They are joined with each other, and with a neighbour of similar iterations.
        """
        begins = self._trainings()
        counts = np.add.reduceat(self.warm.astype(np.int64), begins)
        parts: list[int] = []
        previous: tuple[float, bool] | None = None
        joined_count = 0
        ends = [*begins[1:].tolist(), len(self.late)]
        for begin, end, count in zip(begins.tolist(), ends, counts.tolist(), strict=True):
            usual = float(self.iteration_us[begin:end].min())  # delays do not change the minimum
            is_short = count < min_iterations
            if previous is not None:
                is_similar = min(usual, previous[0]) >= noise.SIMILARITY * max(usual, previous[0])
                if (is_short and previous[1]) or (
                    (is_short or joined_count < min_iterations) and is_similar
                ):
                    previous = (usual, is_short)
                    joined_count += count
                    continue
            parts.append(begin)
            previous = (usual, is_short)
            joined_count = count
        for begin, end in zip(parts, [*parts[1:], len(self.late)], strict=True):
            yield begin, self.at(slice(begin, end))

    def _trainings(self) -> npt.NDArray[np.intp]:
        """Return the starts of cells, and of other models or batch sizes within a cell."""
        rows = self.lateness.rows
        cells = rows["cell"][:, 0]
        sizes = rows[["bytes", "tensors"]][:, 0]
        # work without the waiting, because a late rank does not change the work of other ranks
        work = (rows["iteration_ns"] - rows["exposed_ns"]).min(axis=1)
        begins = np.flatnonzero(np.diff(cells, prepend=cells[0] - 1))
        starts = []
        for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(cells)], strict=True):
            part = slice(begin, end)
            changes = {0, *_other_models(sizes[part]), *_other_batches(work[part])}
            starts += [begin + change for change in sorted(changes)]
        return np.array(starts, dtype=np.intp)

    def trains_as(self, other: RingDelays) -> bool:
        """Whether most iterations of both have the same collectives, and take similarly long."""
        both = (self, other)
        size, other_size = (
            delays.lateness.rows[["bytes", "tensors"]][len(delays.late) // 2, 0] for delays in both
        )
        usual = sorted(float(delays.iteration_us.min()) for delays in both)
        return bool(size == other_size and usual[0] >= noise.SIMILARITY * usual[1])

    def at(self, part: slice | npt.NDArray[np.intp]) -> RingDelays:
        """Return the delays in a part of the iterations."""
        return RingDelays(
            Lateness(*(getattr(self.lateness, field.name)[part] for field in fields(Lateness))),
            _warm(self.warm[part]),
            self.iteration_us[part],
            self.late[part],
            self.waited_for[part],
            {phase: longer[part] for phase, longer in self.longer.items()},
        )

    @property
    def usual_us(self) -> float:
        """The median duration of an iteration."""
        return float(np.median(self.iteration_us[self.warm]))

    @property
    def min_delay_us(self) -> float:
        """The shortest delay that counts."""
        return MIN_SHARE * self.usual_us

    def excess(self, phase: str) -> Matrix:
        """Return each rank's excess over the others in a phase; for `UNKNOWN`, the lateness."""
        return self.late if phase == UNKNOWN else self.longer[phase]

    def late_for(self, phase: str, indices: npt.NDArray[np.intp], column: int) -> float:
        """Return how late a rank is in the iterations that its phase in `indices` delays, in us."""
        late = float(np.median(self.waited_for[indices, column]))
        after = indices[indices + 1 < len(self.late)] + 1
        if phase in AFTER_REDUCTION and len(after):
            late = max(late, float(np.median(self.waited_for[after, column])))
        return late


def ring_delays(rows: Rows) -> Iterator[RingDelays]:
    """Yield the delays of each ring with several ranks."""
    return (RingDelays.of(ring) for ring in lateness(rows) if ring.late_us.shape[1] > 1)


def _other_models(sizes: npt.NDArray[Any]) -> list[int]:
    """Return the indices where the size of the gradients changes for several iterations."""
    begins = np.flatnonzero(np.append(True, sizes[1:] != sizes[:-1]))
    lasting_begins = begins[np.diff(begins, append=len(sizes)) >= noise.LENGTHS[0]]
    # sparse gradients have other sizes for a few iterations in between
    return [
        int(begin)
        for begin, before in zip(lasting_begins[1:], lasting_begins, strict=False)
        if sizes[begin] != sizes[before]
    ]


def _other_batches(work_ns: npt.NDArray[np.int64]) -> list[int]:
    """Return the indices where the ranks' work becomes much longer or shorter, and remains so."""
    length = noise.LENGTHS[1]
    if len(work_ns) < 2 * length:
        return []
    total = np.cumsum(np.append(0.0, np.log(np.maximum(work_ns, 1))))
    means = (total[length:] - total[:-length]) / length
    change = np.abs(means[length:] - means[:-length])
    changed = np.flatnonzero(change >= np.log(MIN_BATCH_CHANGE))
    groups = np.split(changed, np.flatnonzero(np.diff(changed) > 1) + 1) if len(changed) else []
    return [int(group[change[group].argmax()]) + length for group in groups]


def _warm(warm: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return the mask of iterations that are not a warm-up; if there are none, select all."""
    return warm if warm.any() else np.ones_like(warm)
