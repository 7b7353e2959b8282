"""One size of a scaling study, and of two studies that are compared."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


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
    """A number of ranks at which the cell failed, and why.

    With repeats, `reason` begins with the run that failed. The runs before it are a
    `ScalingPoint` of the same size; the size is not run again.
    """

    ranks: int
    reason: str


@dataclass(frozen=True)
class SizeComparison:
    """One number of ranks in two studies.

    Attributes
    ----------
    ranks
        Number of ranks.
    iteration_us, other_us
        Median time of an iteration in each study.
    ratio, low, high
        `other_us` divided by `iteration_us`, with its 95 % interval: 1.05 means that an
        iteration takes 5 % longer in the other study.
    """

    ranks: int
    iteration_us: float
    other_us: float
    ratio: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether the difference is larger than the noise, see `ScalingPoint.low_us`."""
        return self.low > 1 or self.high < 1

    @property
    def loss(self) -> Ratio:
        """Share of the throughput that the other study loses, with its interval.

        If the first study is of a bare host and the other of VMs, this is the virtualization
        tax. It is negative if the other study is faster.
        """
        return Ratio(1 - 1 / self.ratio, 1 - 1 / self.low, 1 - 1 / self.high)


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


def check(points: tuple[ScalingPoint, ...]) -> None:
    """Raise `ValueError` if the values of a file are not those of a study."""
    sizes = [point.ranks for point in points]
    if not sizes or len(set(sizes)) < len(sizes) or min(sizes) < 1:
        raise ValueError("its numbers of ranks are not positive, missing or repeated")
    for point in points:
        pairs = [pair for pair in (point.nominal, point.calibrated) if pair is not None]
        if (
            not 0 < point.low_us <= point.iteration_us <= point.high_us
            or point.efficiency <= 0
            or min(point.runs, point.iterations) < 1
            or min(point.exposed_us or 0, point.gradient_bytes, point.tensors) < 0
            or (point.samples is not None and point.samples <= 0)
            or any(len(pair) != 2 or not 0 < pair[0] <= pair[1] for pair in pairs)
        ):
            raise ValueError(f"its values for ranks = {point.ranks} are not those of a study")
