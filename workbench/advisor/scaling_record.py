"""Scaling studies as data: their efficiency, their file, and the comparison of two studies."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from workbench.advisor.scaling_point import (
    FailedSize,
    Ratio,
    ScalingPoint,
    SizeComparison,
    allowed_text,
    check,
    rank_count,
    time_ratio,
)
from workbench.errors import UsageError
from workbench.safefiles import load_json, read_file, write_regular
from workbench.wire.message import from_json

if TYPE_CHECKING:
    import pandas as pd


_VERSION = 2
_MAX_FILE_BYTES = 1 << 20
_SAME_BATCH = 0.02
"""Batches per rank are the same if they differ by no more than this share."""
_SAME = 0.005
"""Batches and gradients of two studies are the same if they differ by no more than this share."""


@dataclass(frozen=True)
class ScalingStudy:
    """Several points of one cell. A study can be saved, loaded and compared.

    Attributes
    ----------
    label
        Name of the study, such as ``"TCP"``.
    points
        The points, ordered by their number of ranks.
    transports
        The transports of collectives at the largest size, as the libraries report them.
    hosts
        The VMs of the largest size.
    failed
        The sizes at which the cell failed. A size that failed in a later run is in `points` too.
    notes
        The values of this study that are unknown, with the reason.

    Examples
    --------
    >>> study = ScalingStudy(
    ...     "TCP",
    ...     (
    ...         ScalingPoint(1, 60, 40_000.0, 39_000.0, 41_000.0, 0.0, 1.0, samples=32.0),
    ...         ScalingPoint(2, 60, 50_000.0, 49_000.0, 51_000.0, 9_000.0, 0.8, samples=64.0),
    ...     ),
    ... )
    >>> study.scaling
    'weak'
    >>> study
    TCP: weak scaling (the batch of each rank stays); transport unknown
    ranks  iteration ms      95 % interval     samples/s  efficiency
        1         40.00     39.00 to 41.00         800.0        100%
        2         50.00     49.00 to 51.00       1,280.0         80% (77% to 83%)
    """

    label: str
    points: tuple[ScalingPoint, ...]
    transports: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    failed: tuple[FailedSize, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """The unit of `ScalingPoint.per_second`: ``"samples/s"`` or ``"iterations/s"``."""
        unknown = any(point.samples is None for point in self.points)
        return "iterations/s" if unknown else "samples/s"

    @property
    def scaling(self) -> str:
        """How the work changes with the number of ranks.

        ``"weak"`` if the samples of each rank stay the same, ``"strong"`` if the samples of all
        ranks together stay the same (within one per rank, because batches are rounded),
        ``"mixed"`` in all other cases, and ``"unknown"`` with a single size or unknown samples.
        """
        batches = [point.samples_per_rank for point in self.points]
        if len(batches) < 2 or any(batch is None for batch in batches):
            return "unknown"
        if all(math.isclose(batch or 0, batches[0] or 0, rel_tol=_SAME_BATCH) for batch in batches):
            return "weak"
        total = self.points[0].samples or 0
        same = all(abs((point.samples or 0) - total) <= point.ranks for point in self.points)
        return "strong" if same else "mixed"

    def efficiency(self, point: ScalingPoint) -> Ratio:
        """Return the efficiency of a point, with an interval.

        The interval includes the uncertainty of the smallest size.
        """
        first = self.points[0]
        if point.ranks == first.ranks:
            return Ratio(point.efficiency, point.efficiency, point.efficiency)
        ratio = time_ratio(first, point)
        work_ratio = point.efficiency / ratio.value
        return Ratio(point.efficiency, ratio.low * work_ratio, ratio.high * work_ratio)

    def __repr__(self) -> str:
        head = (
            f"{'ranks':>5}  {'iteration ms':>12}  {'95 % interval':>17}  {self.unit:>12}  "
            f"{'efficiency':>10}"
        )
        lines = [self.summary, head]
        for point in self.points:
            interval = f"{point.low_us / 1e3:.2f} to {point.high_us / 1e3:.2f}"
            lines.append(
                f"{point.ranks:>5}  {point.iteration_us / 1e3:>12.2f}  {interval:>17}  "
                f"{point.per_second:>12,.1f}  {self._efficiency_text(point)}"
            )
        lines += [f"{failed.ranks:>5}  failed: {failed.reason}" for failed in self.failed]
        return "\n".join([*lines, *self.notes])

    @property
    def summary(self) -> str:
        """The label, the kind of scaling, the VMs and the transports, in one line."""
        scaling = {
            "weak": "weak scaling (the batch of each rank stays)",
            "strong": "strong scaling (the batch of all ranks together stays)",
            "mixed": "the batch of each rank and that of all together change",
        }.get(self.scaling, "weak or strong scaling unknown")
        parts = [scaling, ", ".join(self.hosts), ", ".join(self.transports) or "transport unknown"]
        return f"{self.label}: {'; '.join(part for part in parts if part)}"

    def _efficiency_text(self, point: ScalingPoint) -> str:
        value, low, high = self.efficiency(point)
        interval = f" ({low:.0%} to {high:.0%})" if high > low else ""
        allowed = "".join(
            f", {name} {allowed_text(pair)}"
            for name, pair in (("nominal", point.nominal), ("calibrated", point.calibrated))
            if pair is not None
        )
        return f"{value:>10.0%}{interval}{allowed}"

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each number of ranks that was measured.

        Returns
        -------
        pandas.DataFrame
            Columns as in `ScalingPoint`, and ``efficiency_low`` and ``efficiency_high`` (the 95 %
            interval) and ``samples_per_s`` (NaN if unknown).
        """
        import pandas as pd

        frame = pd.DataFrame(self.points)
        intervals = [self.efficiency(point) for point in self.points]
        frame["efficiency_low"] = [efficiency.low for efficiency in intervals]
        frame["efficiency_high"] = [efficiency.high for efficiency in intervals]
        frame["samples_per_s"] = [
            math.nan if point.samples is None else point.per_second for point in self.points
        ]
        return frame

    def compare(self, other: ScalingStudy) -> StudyComparison:
        """Compare the iterations of `other` with this study, for the sizes that both have.

        ``bare.compare(vm)`` has the virtualization tax of each size, as `SizeComparison.loss`.

        Raises
        ------
        UsageError
            The studies have no size in common, or their batches differ.
        """
        return _compare(self, other)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the study as JSON.

        Raises
        ------
        UsageError
            The file cannot be written.
        """
        text = json.dumps({"version": _VERSION, **asdict(self)}, indent=2, allow_nan=False)
        try:
            write_regular(path, text)
        except OSError as error:
            raise UsageError(
                f"{path}: cannot be written ({error.strerror}). Give another file."
            ) from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ScalingStudy:
        """Read a study that `save` has written.

        Raises
        ------
        UsageError
            There is no such file, or it contains no study.
        """
        try:
            plain = load_json(read_file(path, _MAX_FILE_BYTES))
            version = plain.pop("version")
            if version != _VERSION:
                raise ValueError(f"version {str(version)[:20]}, this release reads {_VERSION}")
            study: ScalingStudy = from_json(cls, plain)
            check(study.points)
            return replace(study, points=tuple(sorted(study.points, key=lambda point: point.ranks)))
        except OSError as error:
            raise _not_a_study(path, error.strerror or str(error)) from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _not_a_study(path, str(error)) from error


def _not_a_study(path: str | os.PathLike[str], reason: str) -> UsageError:
    return UsageError(
        f"{path}: not a scaling study ({reason}). Give a file that ScalingStudy.save wrote."
    )


@dataclass(frozen=True)
class StudyComparison:
    """The comparison of two studies at the sizes that both have.

    Attributes
    ----------
    studies
        Both studies.
    sizes
        The sizes that both studies have, ordered by their number of ranks.
    differences
        Other differences between the studies, in sentences.
    """

    studies: tuple[ScalingStudy, ScalingStudy]
    sizes: tuple[SizeComparison, ...]
    differences: tuple[str, ...]

    @property
    def sentences(self) -> list[str]:
        """A sentence for each size, the differences, and a remark on the intervals."""
        sentences = [*(self._sentence(size) for size in self.sizes), *self.differences]
        if any(point.runs == 1 for study in self.studies for point in study.points):
            sentences.append(
                "The intervals of sizes that were run once do not have what changes between runs, "
                "such as other load: run both studies with repeats=3 or more."
            )
        return sentences

    def _sentence(self, size: SizeComparison) -> str:
        label, other_label = (study.label for study in self.studies)
        comparison = (
            f"{rank_count(size.ranks)}: an iteration of {other_label} takes {size.ratio:.3f} times "
            f"as long as one of {label} (95 % interval {size.low:.3f} to {size.high:.3f})"
        )
        if not size.clear:
            return f"{comparison}: no difference beyond the noise."
        value, low, high = size.loss
        if value < 0:
            gain = f"{-value:.1%} higher ({-high:.1%} to {-low:.1%})"
            return f"{comparison}: the throughput of {other_label} is {gain}."
        loss = f"{value:.1%} of the throughput ({low:.1%} to {high:.1%})"
        return f"{comparison}: {other_label} loses {loss}."

    def __repr__(self) -> str:
        return "\n".join(self.sentences)

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each size.

        Returns
        -------
        pandas.DataFrame
            Columns as in `SizeComparison`, and ``clear``, ``loss``, ``loss_low`` and
            ``loss_high``.
        """
        import pandas as pd

        return pd.DataFrame(
            [
                asdict(size)
                | {"clear": size.clear}
                | dict(zip(("loss", "loss_low", "loss_high"), size.loss, strict=True))
                for size in self.sizes
            ]
        )


def _compare(study: ScalingStudy, other: ScalingStudy) -> StudyComparison:
    """Compare two studies; see `ScalingStudy.compare`."""
    if not isinstance(other, ScalingStudy):
        raise UsageError(
            f"{other!r}: not a scaling study. Give a ScalingStudy, such as one that "
            "ScalingStudy.load has read."
        )
    other_points = {point.ranks: point for point in other.points}
    pairs = [
        (point, other_points[point.ranks]) for point in study.points if point.ranks in other_points
    ]
    if not pairs:
        raise UsageError(
            f"{study.label} and {other.label}: no number of ranks in common. Run both with the "
            "same sizes."
        )
    labels = (study.label, other.label)
    _check_batches(labels, pairs)
    sizes = []
    for point, other_point in pairs:
        ratio = time_ratio(other_point, point)
        times_us = (point.iteration_us, other_point.iteration_us)
        sizes.append(SizeComparison(point.ranks, *times_us, *ratio))
    differences = (*_unmatched_sizes(study, other), *_unequal(labels, pairs))
    return StudyComparison((study, other), tuple(sizes), differences)


def _check_batches(labels: tuple[str, str], pairs: list[tuple[ScalingPoint, ScalingPoint]]) -> None:
    """Raise an error if the numbers of samples differ at the same number of ranks."""
    label, other_label = labels
    for point, other_point in pairs:
        if point.samples is None or other_point.samples is None:
            continue
        if not math.isclose(point.samples, other_point.samples, rel_tol=_SAME):
            raise UsageError(
                f"{label} and {other_label}: an iteration on {rank_count(point.ranks)} has "
                f"{point.samples:g} samples in {label} and {other_point.samples:g} in "
                f"{other_label}, so their times cannot be compared. Run both with the same batch."
            )


def _unmatched_sizes(study: ScalingStudy, other: ScalingStudy) -> Iterator[str]:
    """Yield the sizes that only one of the studies has."""
    for first, second in ((study, other), (other, study)):
        second_sizes = {point.ranks for point in second.points}
        unmatched = [str(point.ranks) for point in first.points if point.ranks not in second_sizes]
        if unmatched:
            yield f"Only {first.label} has ranks = {', '.join(unmatched)}."


def _unequal(
    labels: tuple[str, str], pairs: list[tuple[ScalingPoint, ScalingPoint]]
) -> Iterator[str]:
    """Yield each difference between points with the same number of ranks, but only once."""
    label, other_label = labels
    for name in ("gradient_bytes", "tensors"):
        for point, other_point in pairs:
            value = getattr(point, name)
            other_value = getattr(other_point, name)
            if not math.isclose(value, other_value, rel_tol=_SAME):
                words = name.replace("gradient_bytes", "bytes of gradients")
                yield (
                    f"The {words} of an iteration differ: {value:,} in {label} and "
                    f"{other_value:,} in {other_label}. Is it the same model, with the same "
                    "compression?"
                )
                break
    if any((point.samples is None) != (other.samples is None) for point, other in pairs):
        yield "The batch of one study is unknown, so it is not known whether both have the same."
