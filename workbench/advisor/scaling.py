"""A scaling study: one cell at several numbers of ranks, against what the fabric allows."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from workbench.advisor.scaling_record import FailedSize, ScalingPoint, ScalingStudy
from workbench.errors import (
    CellInterrupted,
    RanksFailed,
    StudyInterrupted,
    UsageError,
    WorkbenchError,
    shortened,
)
from workbench.fabric import FittedFabric, ring_us
from workbench.fabric.plan_figures import fully_overlapped
from workbench.ranks import checked_int
from workbench.timings.derive import columns
from workbench.timings.progress import samples as samples_of
from workbench.timings.store import warm

if TYPE_CHECKING:
    from workbench.cluster import Cluster

_LEAST_ITERATIONS = 6
"""Fewer have no 95 % interval of their median."""
_MOST_ALIKE = 0.9
"""Highest correlation of neighbouring iterations that is assumed."""
_LONGEST_REASON = 300


def scaling_study(
    cluster: Cluster,
    source: str,
    ranks: Iterable[int],
    *,
    label: str = "",
    nominal_gbps: float | None = None,
    timeout: str | float | None = None,
    save: str | os.PathLike[str] | None = None,
) -> ScalingStudy:
    """Run a cell at several numbers of ranks and measure its iterations.

    The cluster is resized for each and has its earlier number of ranks afterwards; variables of
    ranks that were taken away are lost, so the cell must create all it needs. The batch may stay
    for each rank (weak scaling) or for all ranks together (strong scaling): throughput is in
    samples per second where batches are recorded. Where they are not, the efficiency assumes
    that the work of each rank stays.

    A size that fails after others were measured is in `ScalingStudy.failed`, and the study goes
    on.

    Parameters
    ----------
    cluster
        A running cluster.
    source
        The cell, with a training loop.
    ranks
        Numbers of ranks, such as ``(1, 2, 4)``.
    label
        Name of the study; by default its transports.
    nominal_gbps
        Rate of each VM's link in one direction, in 10^9 bits per second; for sizes with ranks
        on several VMs.
    timeout
        For each run of the cell: seconds, or such as ``"5m"``.
    save
        A file for the study, written after each size; see `ScalingStudy.load`.

    Raises
    ------
    UsageError
        No size was given, recording is off, or the smallest size recorded fewer than six
        iterations after the first.
    StudyInterrupted
        The user stopped it after some sizes, which its ``study`` has.
    WorkbenchError
        The smallest size failed.
    """
    sizes = sorted({checked_int(one, "ranks", 1) for one in ranks})
    _check(cluster, sizes, nominal_gbps, save)
    work = _Work(cluster, source, timeout, label, nominal_gbps, save, cluster.fabric)
    before = cluster.n
    try:
        for size in sizes:
            work.measure(size)
    finally:
        work.restore(before)
    return work.study()


def _check(
    cluster: Cluster,
    sizes: list[int],
    nominal_gbps: float | None,
    save: str | os.PathLike[str] | None,
) -> None:
    if not sizes:
        raise UsageError("scaling_study: no number of ranks given. Give some, such as (1, 2, 4).")
    if nominal_gbps is not None and not 0 < nominal_gbps < math.inf:
        raise UsageError(
            f"nominal_gbps={nominal_gbps!r}: not the rate of a link. Give Gbit/s, such as 25."
        )
    if not cluster.recording:
        raise UsageError(
            "scaling_study: recording is off. Switch it on with cluster.recording = True."
        )
    if save is not None and (Path(save).is_dir() or not Path(save).absolute().parent.is_dir()):
        raise UsageError(f"save={str(save)!r}: not a file in an existing folder. Give another.")


@dataclass
class _Work:
    """What is measured, and what was measured so far."""

    cluster: Cluster
    source: str
    timeout: str | float | None
    label: str
    gbps: float | None
    path: str | os.PathLike[str] | None
    fabric: FittedFabric | None
    measured: list[_MeasuredSize] = field(default_factory=list)
    failed: list[FailedSize] = field(default_factory=list)
    trouble: str = ""

    def measure(self, size: int) -> None:
        """Run the cell at a size, and write the file."""
        try:
            self.measured.append(_run(self.cluster, self.source, size, self.timeout))
        except (CellInterrupted, KeyboardInterrupt) as error:
            if not self.measured:
                raise
            done = ", ".join(str(len(one.vms)) for one in self.measured)
            where = self.path or "`study` of this error (sys.last_value.study in a notebook)"
            raise StudyInterrupted(
                f"The study was interrupted at ranks = {size}. The sizes measured before ({done}) "
                f"are in {where}.",
                self.study(),
            ) from error
        except WorkbenchError as error:
            if not self.measured:
                raise
            self.failed.append(FailedSize(size, _reason(error)))
        if self.path is not None:
            self.study().save(self.path)

    def restore(self, n: int) -> None:
        """Give the cluster its earlier number of ranks, with those that were lost."""
        state = self.cluster.state
        if state == "failed" or (state == "ready" and self.cluster.n != n):
            try:
                self.cluster.resize(n)
            except WorkbenchError as error:  # what was measured is not lost with it
                self.trouble = f"The cluster could not be given its {n} ranks: {_reason(error)}"

    def study(self) -> ScalingStudy:
        """Return the study of the sizes so far."""
        first, last = self.measured[0], self.measured[-1]
        fabric = self.fabric if self.fabric and self.fabric.reliable else None
        points = tuple(_point_of(one, first, fabric, self.gbps) for one in self.measured)
        return ScalingStudy(
            label=self.label or ", ".join(last.transports) or "study",
            points=points,
            transports=last.transports,
            hosts=tuple(dict.fromkeys(last.vms)),
            failed=tuple(self.failed),
            notes=tuple(self._notes(points)),
        )

    def _notes(self, points: tuple[ScalingPoint, ...]) -> Iterator[str]:
        """Yield what is not known, and why."""
        if self.trouble:
            yield self.trouble
        if any(point.samples is None for point in points):
            yield (
                "Samples per second are unknown (batches without a common first dimension). The "
                "efficiency assumes that the work of each rank stays."
            )
        if points[-1].ranks == 1:
            return
        if points[0].ranks > 1:
            yield (
                "The nominal and the calibrated efficiency are unknown: they need the time of one "
                "rank alone. Include 1 in the sizes."
            )
            return
        if len(set(self.measured[-1].vms)) == 1:
            yield "The nominal efficiency is unknown: all ranks share one VM, without a link."
        elif self.gbps is None:
            yield (
                "The nominal efficiency is unknown: so is the rate of the VMs' links. Give it as "
                "nominal_gbps, or --gbps."
            )
        if self.fabric is None:
            yield (
                "The calibrated efficiency is unknown: calibrate before the study, with "
                "cluster.calibrate() or %fabric calibrate."
            )
        elif not self.fabric.reliable:
            yield f"The calibrated efficiency is unknown: {self.fabric.caveat}"


def _reason(error: WorkbenchError) -> str:
    """Return why a size failed, in one line."""
    if isinstance(error, RanksFailed) and error.errors:
        rank, failed = next(iter(error.errors.items()))
        text = f"rank {rank}: {failed.name}: {failed.message}"
    else:
        text = str(error)
    return shortened(" ".join(text.split()), _LONGEST_REASON)


@dataclass(frozen=True)
class _MeasuredSize:
    """The iterations at one number of ranks, in their order, and where these were."""

    times_us: npt.NDArray[np.float64]
    exposed_us: float | None
    moved_bytes: int
    tensors: int
    samples: float | None
    transports: tuple[str, ...]
    vms: tuple[str, ...]


def _run(cluster: Cluster, source: str, size: int, timeout: str | float | None) -> _MeasuredSize:
    """Run the cell on `size` ranks, and measure its iterations."""
    if cluster.n != size or cluster.state == "failed":
        cluster.resize(size)
    earlier = cluster.timings.rows()["cell"].max(initial=-1)
    cluster.run(source, timeout=timeout)
    rows = cluster.timings.rows()
    rows = rows[rows["cell"] > earlier]
    rows = warm(rows) if len(rows) else rows
    table = columns(rows)
    numbers, places = np.unique(rows["iteration"], return_inverse=True)
    if len(numbers) < _LEAST_ITERATIONS:
        raise UsageError(
            f"scaling_study: the cell recorded {len(numbers)} iterations on {size} "
            f"rank{'s' * (size > 1)}, without the first, and at least {_LEAST_ITERATIONS} are "
            "needed. Train for more iterations in it."
        )
    slowest = np.zeros(len(numbers))
    np.maximum.at(slowest, places, table["iteration_us"])
    exposed = table["exposed_us"][~np.isnan(table["exposed_us"])]
    samples = float(np.median(np.bincount(places, samples_of(rows))))
    return _MeasuredSize(
        times_us=slowest,
        exposed_us=float(exposed.mean()) if len(exposed) else None,
        moved_bytes=round(float(np.median(rows["bytes"]))),
        tensors=round(float(np.median(rows["tensors"]))),
        samples=None if math.isnan(samples) else samples,
        transports=tuple(sorted({one.transport for one in cluster.ranks if one.transport})),
        vms=tuple(one.vm for one in cluster.ranks),
    )


def _point_of(
    measured: _MeasuredSize,
    smallest: _MeasuredSize,
    fabric: FittedFabric | None,
    gbps: float | None,
) -> ScalingPoint:
    """Return a point, with the efficiency that the fabric allows if one rank was measured."""
    times, ranks = np.sort(measured.times_us), len(measured.vms)
    low, high = _interval(measured.times_us)
    work = 1.0  # of a rank, as a multiple of that at the smallest size
    if measured.samples is not None and smallest.samples is not None:
        work = measured.samples / ranks / (smallest.samples / len(smallest.vms))
    compute = float(np.median(smallest.times_us)) * work
    nominal_us = calibrated_us = None
    if len(smallest.vms) == 1:
        moved = measured.moved_bytes
        if gbps is not None and (ranks == 1 or len(set(measured.vms)) > 1):
            nominal_us = ring_us(moved, ranks, gbps)
        if fabric is not None:
            calibrated_us = fabric.predict_us(moved, ranks) if ranks > 1 else 0.0
    return ScalingPoint(
        ranks=ranks,
        iterations=len(times),
        iteration_us=float(np.median(times)),
        low_us=float(times[low]),
        high_us=float(times[high]),
        exposed_us=measured.exposed_us,
        efficiency=compute / float(np.median(times)),
        nominal=_efficiency(compute, nominal_us),
        calibrated=_efficiency(compute, calibrated_us),
        samples=measured.samples,
        gradient_bytes=measured.moved_bytes,
        tensors=measured.tensors,
    )


def _efficiency(compute_us: float, communication_us: float | None) -> tuple[float, float] | None:
    """Return the efficiency without and with full overlap."""
    if communication_us is None:
        return None
    overlapped_us = fully_overlapped(compute_us, communication_us)
    return compute_us / (compute_us + communication_us), compute_us / overlapped_us


def _interval(values: npt.NDArray[Any]) -> tuple[int, int]:
    """Return the places of the sorted values that enclose the median with 95 %.

    The values are in their order in time. If neighbours are alike, with a rank correlation of r,
    n values count as n (1 - r) / (1 + r) independent ones (a first-order autoregression).
    """
    count = len(values)
    order = np.argsort(np.argsort(values)).astype(np.float64)
    alike = min(max(float(np.corrcoef(order[1:], order[:-1])[0, 1]), 0.0), _MOST_ALIKE)
    half = 1.96 * math.sqrt(count * (1 + alike) / (1 - alike)) / 2
    low = max(0, math.floor(count / 2 - half))
    return low, min(count - 1, math.ceil(count / 2 + half) - 1)
