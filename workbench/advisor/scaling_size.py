"""Measure a cell at one number of ranks, and derive the efficiency."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from workbench.advisor.scaling_point import ScalingPoint, rank_count
from workbench.errors import UsageError
from workbench.fabric import FittedFabric, ring_us
from workbench.fabric.plan_figures import fully_overlapped
from workbench.timings.derive import columns
from workbench.timings.figures import typical
from workbench.timings.progress import samples as samples_of

if TYPE_CHECKING:
    from workbench.cluster import Cluster

_MIN_ITERATIONS = 6
"""Minimum number of iterations for a 95 % interval of their median."""
_MAX_CORRELATION = 0.9
"""Maximum correlation of neighbouring iterations that is assumed."""
_SAME = 0.005
"""Samples and bytes of two runs are the same if they differ by no more than this share."""
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""The 0.975 quantile of Student's t-distribution, for 1, 2 and more degrees of freedom."""

MAX_REPEATS = 1 + len(_STUDENT)
"""Maximum number of runs of a size."""


@dataclass(frozen=True)
class MeasuredSize:
    """The measured iterations at one number of ranks.

    Attributes
    ----------
    runs_us
        The time of each iteration, for each run.
    exposed_us
        Mean time of all iterations for which ranks waited for communication; None if unknown.
    moved_bytes, tensors, samples
        Bytes and tensors of gradients of a rank, and samples of all ranks in an iteration.
    transports
        The transports of all runs.
    vms
        The VM of each rank in the last run.
    """

    runs_us: tuple[npt.NDArray[np.float64], ...]
    exposed_us: float | None
    moved_bytes: int
    tensors: int
    samples: float | None
    transports: tuple[str, ...]
    vms: tuple[str, ...]

    def with_runs(self, earlier: MeasuredSize) -> MeasuredSize:
        """Return a copy that has the runs of an earlier measurement before these runs.

        Raises
        ------
        UsageError
            The samples or bytes of an iteration differ from the earlier runs.
        """
        for name, before, now in (
            ("samples", earlier.samples, self.samples),
            ("bytes of gradients", earlier.moved_bytes, self.moved_bytes),
        ):
            if not math.isclose(before or 0, now or 0, rel_tol=_SAME):
                raise UsageError(
                    f"scaling_study: an iteration had {_count_text(before)} {name} in the runs "
                    f"before, and {_count_text(now)} in this. Give a cell that does the same in "
                    "each run."
                )
        exposed = None
        if earlier.exposed_us is not None and self.exposed_us is not None:
            exposed = float(
                np.average(
                    (earlier.exposed_us, self.exposed_us),
                    weights=(earlier.iterations, self.iterations),
                )
            )
        return replace(
            self,
            runs_us=earlier.runs_us + self.runs_us,
            exposed_us=exposed,
            transports=tuple(sorted({*earlier.transports, *self.transports})),
        )

    @property
    def iterations(self) -> int:
        """Number of iterations of all runs together."""
        return sum(map(len, self.runs_us))

    def time_us(self) -> tuple[float, float, float]:
        """Return the time of an iteration, with the ends of its 95 % interval.

        For one run, these are the median and the order statistics around it. For several runs,
        they are the geometric mean of the medians, and its Student interval, which includes
        changes between runs.
        """
        medians = [float(np.median(run)) for run in self.runs_us]
        if len(medians) == 1:
            times = np.sort(self.runs_us[0])
            low, high = _interval(self.runs_us[0])
            return medians[0], float(times[low]), float(times[high])
        logs = np.log(medians)
        # n values have n - 1 degrees of freedom, and the first quantile is for 1 degree.
        half = _STUDENT[len(logs) - 2] * float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
        middle = math.exp(float(logs.mean()))
        return middle, middle * math.exp(-half), middle * math.exp(half)


def measure_size(
    cluster: Cluster, source: str, size: int, timeout: str | float | None
) -> MeasuredSize:
    """Run the cell on `size` ranks, and measure its iterations."""
    if cluster.n != size or cluster.state == "failed":
        cluster.resize(size)
    last_cell = cluster.timings.rows()["cell"].max(initial=-1)
    cluster.run(source, timeout=timeout)
    rows = cluster.timings.rows()
    rows = rows[rows["cell"] > last_cell]
    rows = typical(rows) if len(rows) else rows
    table = columns(rows)
    iterations, iteration_indices = np.unique(rows["iteration"], return_inverse=True)
    if len(iterations) < _MIN_ITERATIONS:
        raise UsageError(
            f"scaling_study: the cell recorded {len(iterations)} iterations on {rank_count(size)}, "
            f"without the first, and at least {_MIN_ITERATIONS} are needed. Train for more "
            "iterations in it."
        )
    slowest = np.zeros(len(iterations))
    np.maximum.at(slowest, iteration_indices, table["iteration_us"])
    exposed = table["exposed_us"][~np.isnan(table["exposed_us"])]
    samples = float(np.median(np.bincount(iteration_indices, samples_of(rows))))
    return MeasuredSize(
        runs_us=(slowest,),
        exposed_us=float(exposed.mean()) if len(exposed) else None,
        moved_bytes=round(float(np.median(rows["bytes"]))),
        tensors=round(float(np.median(rows["tensors"]))),
        samples=None if math.isnan(samples) else samples,
        transports=tuple(sorted({info.transport for info in cluster.ranks if info.transport})),
        vms=tuple(info.vm for info in cluster.ranks),
    )


def point_of(
    measured: MeasuredSize,
    smallest: MeasuredSize,
    fabric: FittedFabric | None,
    gbps: float | None,
) -> ScalingPoint:
    """Return the point of a measured size.

    The point has the efficiency that the fabric allows if one rank alone was measured.
    """
    ranks = len(measured.vms)
    middle, low, high = measured.time_us()
    work = 1.0  # The work of a rank, relative to the work of a rank at the smallest size.
    if measured.samples is not None and smallest.samples is not None:
        work = measured.samples / ranks / (smallest.samples / len(smallest.vms))
    compute = smallest.time_us()[0] * work
    nominal_us = calibrated_us = None
    if len(smallest.vms) == 1:
        moved = measured.moved_bytes
        if gbps is not None and (ranks == 1 or len(set(measured.vms)) > 1):
            nominal_us = ring_us(moved, ranks, gbps)
        if fabric is not None:
            calibrated_us = fabric.predict_us(moved, ranks) if ranks > 1 else 0.0
    return ScalingPoint(
        ranks=ranks,
        iterations=measured.iterations,
        iteration_us=middle,
        low_us=low,
        high_us=high,
        exposed_us=measured.exposed_us,
        efficiency=compute / middle,
        nominal=_efficiency(compute, nominal_us),
        calibrated=_efficiency(compute, calibrated_us),
        samples=measured.samples,
        gradient_bytes=measured.moved_bytes,
        tensors=measured.tensors,
        runs=len(measured.runs_us),
    )


def _count_text(count: float | None) -> str:
    return "unknown" if count is None else f"{count:,.10g}"


def _efficiency(compute_us: float, communication_us: float | None) -> tuple[float, float] | None:
    """Return the efficiency without and with full overlap."""
    if communication_us is None:
        return None
    overlapped_us = fully_overlapped(compute_us, communication_us)
    return compute_us / (compute_us + communication_us), compute_us / overlapped_us


def _interval(values: npt.NDArray[Any]) -> tuple[int, int]:
    """Return the indices of two sorted values that enclose the median with probability 95 %.

    The values are ordered by time. If the rank correlation of neighbours is r > 0, n values count
    as n (1 - r) / (1 + r) independent values (a first-order autoregression).

    Examples
    --------
    >>> _interval(np.array([3.0, 1.0, 4.0, 2.0, 6.0, 5.0, 8.0, 7.0]))
    (0, 7)
    """
    count = len(values)
    order = np.argsort(np.argsort(values)).astype(np.float64)
    correlation = min(max(float(np.corrcoef(order[1:], order[:-1])[0, 1]), 0.0), _MAX_CORRELATION)
    half = 1.96 * math.sqrt(count * (1 + correlation) / (1 - correlation)) / 2
    low = max(0, math.floor(count / 2 - half))
    return low, min(count - 1, math.ceil(count / 2 + half) - 1)
