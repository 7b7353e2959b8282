"""Scaling studies as data: their efficiency, the file that stores one, and two compared."""

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
    time_ratio,
)
from workbench.errors import UsageError
from workbench.safefiles import load_json, read_file, write_regular
from workbench.wire.message import from_json

if TYPE_CHECKING:
    import pandas as pd


_VERSION = 2
_LARGEST_FILE = 1 << 20
_SAME_BATCH = 0.02
"""Batches per rank are the same if they differ by no more than this share."""
_SAME = 0.005
"""Batches and gradients of two studies are the same if they differ by no more than this share."""


@dataclass(frozen=True)
class ScalingStudy:
    """Several points of one cell; can be saved, loaded and compared.

    Attributes
    ----------
    label
        Name of the study, such as ``"TCP"``.
    points
        In the order of the number of ranks.
    transports
        How collectives were carried at the largest size, as the libraries report it.
    hosts
        The VMs of the largest size.
    failed
        The sizes at which the cell failed; one that failed in a later run is in `points` too.
    notes
        What is not known of this study, and why.
    """

    label: str
    points: tuple[ScalingPoint, ...]
    transports: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    failed: tuple[FailedSize, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """What `ScalingPoint.per_second` counts: ``"samples/s"`` or ``"iterations/s"``."""
        unknown = any(point.samples is None for point in self.points)
        return "iterations/s" if unknown else "samples/s"

    @property
    def scaling(self) -> str:
        """How the work changes with the number of ranks.

        ``"weak"`` if the samples of each rank stay, ``"strong"`` if those of all ranks together
        stay (within one per rank, as batches are rounded), ``"mixed"`` if neither does, and
        ``"unknown"`` with a single size or unknown samples.
        """
        each = [point.samples_per_rank for point in self.points]
        if len(each) < 2 or any(one is None for one in each):
            return "unknown"
        if all(math.isclose(one or 0, each[0] or 0, rel_tol=_SAME_BATCH) for one in each):
            return "weak"
        total = self.points[0].samples or 0
        same = all(abs((one.samples or 0) - total) <= one.ranks for one in self.points)
        return "strong" if same else "mixed"

    def efficiency(self, point: ScalingPoint) -> Ratio:
        """Return the efficiency of a point with its interval, which is that of both sizes."""
        first = self.points[0]
        if point.ranks == first.ranks:
            return Ratio(point.efficiency, point.efficiency, point.efficiency)
        ratio = time_ratio(first, point)
        work = point.efficiency / ratio.value
        return Ratio(point.efficiency, ratio.low * work, ratio.high * work)

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
        lines += [f"{one.ranks:>5}  failed: {one.reason}" for one in self.failed]
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
        frame["efficiency_low"] = [one.low for one in intervals]
        frame["efficiency_high"] = [one.high for one in intervals]
        frame["samples_per_s"] = [
            math.nan if point.samples is None else point.per_second for point in self.points
        ]
        return frame

    def compare(self, other: ScalingStudy) -> StudyComparison:
        """Compare the iterations of `other` with these, for the sizes that both have.

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
            plain = load_json(read_file(path, _LARGEST_FILE))
            version = plain.pop("version")
            if version != _VERSION:
                raise ValueError(f"version {str(version)[:20]}, this release reads {_VERSION}")
            study: ScalingStudy = from_json(cls, plain)
            check(study.points)
            return replace(study, points=tuple(sorted(study.points, key=lambda one: one.ranks)))
        except OSError as error:
            raise _not_a_study(path, error.strerror or str(error)) from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _not_a_study(path, str(error)) from error


def _not_a_study(path: str | os.PathLike[str], why: str) -> UsageError:
    return UsageError(
        f"{path}: not a scaling study ({why}). Give a file that ScalingStudy.save wrote."
    )


@dataclass(frozen=True)
class StudyComparison:
    """Two studies compared, with the sizes that both have.

    Attributes
    ----------
    studies
        Both studies.
    sizes
        In the order of the number of ranks.
    differences
        What else differs between the studies, in sentences.
    """

    studies: tuple[ScalingStudy, ScalingStudy]
    sizes: tuple[SizeComparison, ...]
    differences: tuple[str, ...]

    @property
    def sentences(self) -> list[str]:
        """One sentence for each size, the differences, and what the intervals do not have."""
        found = [*(self._sentence(size) for size in self.sizes), *self.differences]
        if any(point.runs == 1 for study in self.studies for point in study.points):
            found.append(
                "The intervals of sizes that were run once do not have what changes between runs, "
                "such as other load: run both studies with repeats=3 or more."
            )
        return found

    def _sentence(self, size: SizeComparison) -> str:
        one, other = (study.label for study in self.studies)
        ranks = f"{size.ranks} rank{'s' * (size.ranks > 1)}"
        found = (
            f"{ranks}: an iteration of {other} takes {size.ratio:.3f} times as long as one of "
            f"{one} (95 % interval {size.low:.3f} to {size.high:.3f})"
        )
        if not size.clear:
            return f"{found}: no difference beyond the noise."
        value, low, high = size.loss
        if value < 0:
            gain = f"{-value:.1%} higher ({-high:.1%} to {-low:.1%})"
            return f"{found}: the throughput of {other} is {gain}."
        return f"{found}: {other} loses {value:.1%} of the throughput ({low:.1%} to {high:.1%})."

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
                asdict(one)
                | {"clear": one.clear}
                | dict(zip(("loss", "loss_low", "loss_high"), one.loss, strict=True))
                for one in self.sizes
            ]
        )


def _compare(one: ScalingStudy, other: ScalingStudy) -> StudyComparison:
    """Compare two studies, see `ScalingStudy.compare`."""
    if not isinstance(other, ScalingStudy):
        raise UsageError(
            f"{other!r}: not a scaling study. Give a ScalingStudy, such as one that "
            "ScalingStudy.load has read."
        )
    theirs = {point.ranks: point for point in other.points}
    pairs = [(point, theirs[point.ranks]) for point in one.points if point.ranks in theirs]
    if not pairs:
        raise UsageError(
            f"{one.label} and {other.label}: no number of ranks in common. Run both with the "
            "same sizes."
        )
    names = (one.label, other.label)
    _check_batches(names, pairs)
    sizes = []
    for point, own in pairs:
        ratio = time_ratio(own, point)
        sizes.append(SizeComparison(point.ranks, point.iteration_us, own.iteration_us, *ratio))
    differences = (*_sizes_of_one(one, other), *_unequal(names, pairs))
    return StudyComparison((one, other), tuple(sizes), differences)


def _check_batches(names: tuple[str, str], pairs: list[tuple[ScalingPoint, ScalingPoint]]) -> None:
    for point, own in pairs:
        if point.samples is None or own.samples is None:
            continue
        if not math.isclose(point.samples, own.samples, rel_tol=_SAME):
            raise UsageError(
                f"{names[0]} and {names[1]}: an iteration on {point.ranks} "
                f"rank{'s' * (point.ranks > 1)} has {point.samples:g} samples in {names[0]} and "
                f"{own.samples:g} in {names[1]}, so their times cannot be compared. Run both with "
                "the same batch."
            )


def _sizes_of_one(one: ScalingStudy, other: ScalingStudy) -> Iterator[str]:
    """Yield the sizes that only one study has."""
    for study, against in ((one, other), (other, one)):
        theirs = {point.ranks for point in against.points}
        only = [str(point.ranks) for point in study.points if point.ranks not in theirs]
        if only:
            yield f"Only {study.label} has ranks = {', '.join(only)}."


def _unequal(
    names: tuple[str, str], pairs: list[tuple[ScalingPoint, ScalingPoint]]
) -> Iterator[str]:
    """Yield what is unequal at the same number of ranks, once."""
    for name in ("gradient_bytes", "tensors"):
        for point, own in pairs:
            mine, theirs = getattr(point, name), getattr(own, name)
            if not math.isclose(mine, theirs, rel_tol=_SAME):
                words = name.replace("gradient_bytes", "bytes of gradients")
                yield (
                    f"The {words} of an iteration differ: {mine:,} in {names[0]} and {theirs:,} in "
                    f"{names[1]}. Is it the same model, with the same compression?"
                )
                break
    if any((point.samples is None) != (own.samples is None) for point, own in pairs):
        yield "The batch of one study is unknown, so it is not known whether both have the same."
