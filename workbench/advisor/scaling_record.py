"""A scaling study as data: its sizes, their efficiency, and the file that stores it."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from workbench.errors import UsageError
from workbench.safefiles import load_json, read_file, write_regular
from workbench.wire.message import from_json

if TYPE_CHECKING:
    import pandas as pd

    from workbench.advisor.scaling_comparison import StudyComparison

_VERSION = 2
_LARGEST_FILE = 1 << 20
_SAME_BATCH = 0.02
"""Batches per rank are the same if they differ by no more than this share."""


class Ratio(NamedTuple):
    """A ratio, and the ends of its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ScalingPoint:
    """The iterations of the cell at one number of ranks.

    Attributes
    ----------
    ranks
        Number of ranks.
    iterations
        Number of iterations measured, without the first of the cell.
    iteration_us
        Median time of an iteration, of the slowest rank in each; of several runs, the geometric
        mean of their medians.
    low_us, high_us
        Its 95 % interval. Of one run: from the order statistics of the median (at least six
        iterations), wider where neighbouring iterations are alike; what changes between runs is
        not in it. Of several runs: from the spread of their medians.
    exposed_us
        Mean time in which ranks waited for communication; None if it was not timed.
    efficiency
        Throughput of a rank, divided by that of a rank at the smallest size: in samples per
        second, or in iterations per second if `samples` is None.
    nominal, calibrated
        The efficiency that the link's rate allows, and that of the calibrated fabric, each
        without and with full overlap; None if unknown, see `ScalingStudy.notes`.
    samples
        Samples in an iteration of all ranks together (median); None if unknown.
    gradient_bytes, tensors
        What a rank sends to be averaged in an iteration (median).
    runs
        How often the cell was run at this size.
    """

    ranks: int
    iterations: int
    iteration_us: float
    low_us: float
    high_us: float
    exposed_us: float | None
    efficiency: float
    nominal: tuple[float, float] | None = None
    calibrated: tuple[float, float] | None = None
    samples: float | None = None
    gradient_bytes: int = 0
    tensors: int = 0
    runs: int = 1

    @property
    def per_second(self) -> float:
        """Samples per second of all ranks together; iterations per second if `samples` is None."""
        return (1.0 if self.samples is None else self.samples) / self.iteration_us * 1e6

    @property
    def samples_per_rank(self) -> float | None:
        """Samples in an iteration of one rank (mean of the ranks); None if unknown."""
        return None if self.samples is None else self.samples / self.ranks


@dataclass(frozen=True)
class FailedSize:
    """A number of ranks at which the cell failed, and why."""

    ranks: int
    reason: str


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
        The sizes at which the cell failed.
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
        from workbench.advisor.scaling_comparison import compare

        return compare(self, other)

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
            _check(study)
            return replace(study, points=tuple(sorted(study.points, key=lambda one: one.ranks)))
        except OSError as error:
            raise _not_a_study(path, error.strerror or str(error)) from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _not_a_study(path, str(error)) from error


def time_ratio(one: ScalingPoint, other: ScalingPoint) -> Ratio:
    """Return the iteration time of `one` divided by that of `other`.

    Its interval is that of two independent medians: the distances of their ends from them, on a
    logarithmic scale, are added in quadrature.
    """
    value = one.iteration_us / other.iteration_us
    down = math.hypot(
        math.log(one.iteration_us / one.low_us), math.log(other.high_us / other.iteration_us)
    )
    up = math.hypot(
        math.log(one.high_us / one.iteration_us), math.log(other.iteration_us / other.low_us)
    )
    return Ratio(value, value * math.exp(-down), value * math.exp(up))


def allowed_text(efficiency: tuple[float, float]) -> str:
    """Return the efficiency without and with full overlap as text."""
    low, high = (f"{one:.0%}" for one in efficiency)
    return low if low == high else f"{low} to {high}"


def _check(study: ScalingStudy) -> None:
    """Raise `ValueError` if the values of a file are not those of a study."""
    sizes = [point.ranks for point in study.points]
    if not sizes or len(set(sizes)) < len(sizes) or min(sizes) < 1:
        raise ValueError("its numbers of ranks are not positive, missing or repeated")
    for point in study.points:
        pairs = [pair for pair in (point.nominal, point.calibrated) if pair is not None]
        if (
            not 0 < point.low_us <= point.iteration_us <= point.high_us
            or point.efficiency <= 0
            or point.runs < 1
            or (point.samples is not None and point.samples <= 0)
            or any(len(pair) != 2 or not 0 < pair[0] <= pair[1] for pair in pairs)
        ):
            raise ValueError(f"its values for ranks = {point.ranks} are not those of a study")


def _not_a_study(path: str | os.PathLike[str], why: str) -> UsageError:
    return UsageError(
        f"{path}: not a scaling study ({why}). Give a file that ScalingStudy.save wrote."
    )
