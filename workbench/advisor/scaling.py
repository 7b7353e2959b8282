"""Run a scaling study: one cell at several numbers of ranks."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.advisor.scaling_point import FailedSize, ScalingPoint
from workbench.advisor.scaling_record import ScalingStudy
from workbench.advisor.scaling_size import MAX_REPEATS, MeasuredSize, measure_size, point_of
from workbench.errors import (
    CellInterrupted,
    RanksFailed,
    StudyInterrupted,
    UsageError,
    WorkbenchError,
    shortened,
)
from workbench.fabric import FittedFabric
from workbench.ranks import checked_int

if TYPE_CHECKING:
    from workbench.cluster import Cluster

_log = logging.getLogger(__name__)

_MAX_REASON_CHARACTERS = 300


def scaling_study(
    cluster: Cluster,
    source: str,
    ranks: Iterable[int],
    *,
    label: str = "",
    nominal_gbps: float | None = None,
    timeout: str | float | None = None,
    save: str | os.PathLike[str] | None = None,
    repeats: int = 1,
) -> ScalingStudy:
    """Run a cell at several numbers of ranks and measure its iterations.

    The cluster is resized for each number, and restored at the end. The variables of removed ranks
    are lost, so the cell must create everything that it needs. The batch may stay the same for
    each rank (weak scaling) or for all ranks together (strong scaling). Throughput is in samples
    per second if batches are recorded; otherwise the efficiency assumes that the work of each rank
    stays the same.

    If a size fails after others were measured, the study continues without it. The size and its
    failed run are in `ScalingStudy.failed`, and its earlier runs are kept. If the file of `save`
    cannot be written, the study continues too, and `ScalingStudy.notes` has the reason.

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
        Time limit of each run of the cell: seconds, or a text such as ``"5m"``.
    save
        A file for the study, written after each size; see `ScalingStudy.load`.
    repeats
        How often all sizes are run in turn, up to 10. Use three or more to compare studies: on
        shared VMs, runs can differ more than the iterations within a run.

    Raises
    ------
    UsageError
        No size was given, recording is off, or the smallest size recorded fewer than six
        iterations after the first.
    StudyInterrupted
        The user stopped the study after some sizes were measured; the error's ``study`` has them.
    WorkbenchError
        The smallest size failed.
    """
    sizes = sorted({checked_int(size, "ranks", 1) for size in ranks})
    _check(cluster, sizes, repeats, nominal_gbps, save)
    running = _RunningStudy(cluster, source, timeout, label, nominal_gbps, save, cluster.fabric)
    running.measure_all(sizes, repeats)
    return running.study()


def _check(
    cluster: Cluster,
    sizes: list[int],
    repeats: int,
    nominal_gbps: float | None,
    save: str | os.PathLike[str] | None,
) -> None:
    if checked_int(repeats, "repeats", 1) > MAX_REPEATS:
        raise UsageError(f"repeats={repeats}: more than {MAX_REPEATS}. Give at most that many.")
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
class _RunningStudy:
    """The arguments of a study, and the sizes that were measured so far.

    Attributes
    ----------
    size
        The size that runs, or that ran last.
    saved
        Whether the file has all measured sizes.
    not_saved, not_restored
        The reasons why the file was not written and the number of ranks not restored; empty
        without a failure.
    """

    cluster: Cluster
    source: str
    timeout: str | float | None
    label: str
    gbps: float | None
    path: str | os.PathLike[str] | None
    fabric: FittedFabric | None
    measured: list[MeasuredSize] = field(default_factory=list)
    failed: list[FailedSize] = field(default_factory=list)
    size: int = 0
    saved: bool = False
    not_saved: str = ""
    not_restored: str = ""

    def measure_all(self, sizes: list[int], repeats: int) -> None:
        """Run the cell at all sizes in turn, `repeats` times, then restore the number of ranks."""
        n_before = self.cluster.n
        try:
            try:
                for run in range(1, repeats + 1):
                    for size in sizes:
                        self.measure(size, f"in run {run} of {repeats}: " if repeats > 1 else "")
            finally:
                self.restore(n_before)
        except (CellInterrupted, KeyboardInterrupt) as error:
            if not self.measured:
                raise
            raise self.interrupted() from error

    def measure(self, size: int, run_text: str) -> None:
        """Run the cell at a size, and write the file; skip a size that has failed before."""
        if any(failed.ranks == size for failed in self.failed):
            return
        self.size = size
        started_s = time.monotonic()
        try:
            self._add(measure_size(self.cluster, self.source, size, self.timeout))
            _log.info("ran the cell on %d ranks in %.1f s", size, time.monotonic() - started_s)
        except CellInterrupted:
            raise
        except WorkbenchError as error:
            if not self.measured:
                raise
            _log.info("the cell failed on %d ranks; this size is left out", size)
            self.failed.append(FailedSize(size, f"{run_text}{_reason(error)}"))
        self._save()

    def _save(self) -> None:
        """Write the file; if that fails, keep the measured sizes and the error."""
        self.saved = False
        if self.path is None:
            return
        self.not_saved = ""
        try:
            self.study().save(self.path)
        except UsageError as error:
            self.not_saved = f"The study was not saved. {error}"
        else:
            self.saved = True

    def interrupted(self) -> StudyInterrupted:
        """Return the error of an interrupt, with the study so far."""
        sizes = ", ".join(str(len(measured.vms)) for measured in self.measured)
        attribute = "`study` of this error (sys.last_value.study in a notebook)"
        return StudyInterrupted(
            f"The study was interrupted at ranks = {self.size}. The sizes measured before "
            f"({sizes}) are in {self.path if self.saved else attribute}.",
            self.study(),
        )

    def _add(self, new: MeasuredSize) -> None:
        """Add a measured size; if the size was run before, add the runs to its earlier runs."""
        for index, earlier in enumerate(self.measured):
            if len(earlier.vms) == len(new.vms):
                self.measured[index] = new.with_runs(earlier)
                return
        self.measured.append(new)

    def restore(self, n: int) -> None:
        """Resize the cluster to its earlier number of ranks, and replace lost ranks."""
        state = self.cluster.state
        if state == "failed" or (state == "ready" and self.cluster.n != n):
            try:
                self.cluster.resize(n)
            except WorkbenchError as error:  # Keep the measured sizes.
                self.not_restored = (
                    f"The cluster could not be given its {n} ranks: {_reason(error)}"
                )

    def study(self) -> ScalingStudy:
        """Return the study of the sizes so far."""
        first = self.measured[0]
        last = self.measured[-1]
        fabric = self.fabric if self.fabric and self.fabric.reliable else None
        points = tuple(point_of(measured, first, fabric, self.gbps) for measured in self.measured)
        return ScalingStudy(
            label=self.label or ", ".join(last.transports) or "study",
            points=points,
            transports=last.transports,
            hosts=tuple(dict.fromkeys(last.vms)),
            failed=tuple(self.failed),
            notes=tuple(self._notes(points)),
        )

    def _notes(self, points: tuple[ScalingPoint, ...]) -> Iterator[str]:
        """Yield the values that are unknown, with the reason."""
        yield from filter(None, (self.not_saved, self.not_restored))
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
    return shortened(" ".join(text.split()), _MAX_REASON_CHARACTERS)
