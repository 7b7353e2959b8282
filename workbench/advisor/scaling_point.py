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
        Median time of an iteration in microseconds; the time of an iteration is the time of its
        slowest rank. For several runs, the geometric mean of their medians.
    low_us, high_us
        The 95 % interval of `iteration_us`. For one run, it is from the order statistics of the
        median (at least six iterations), and wider if neighbouring iterations are correlated; it
        does not include changes between runs. For several runs, it is from the spread of their
        medians.
    exposed_us
        Mean time per iteration for which ranks waited for communication, in microseconds; None if
        it was not timed.
    efficiency
        Throughput of a rank, divided by the throughput of a rank at the smallest size. Throughput
        is in samples per second, or in iterations per second if `samples` is None.
    nominal, calibrated
        The efficiency that the link's rate allows, and the efficiency that the calibrated fabric
        allows, each without and with full overlap; None if unknown, see `ScalingStudy.notes`.
    samples
        Samples in an iteration of all ranks together (median); None if unknown.
    gradient_bytes, tensors
        Bytes and tensors of gradients that a rank sends in an iteration (median).
    runs
        How often the cell was run at this size.

    Examples
    --------
    >>> point = ScalingPoint(2, 60, 50_000.0, 49_000.0, 51_000.0, 4_000.0, 0.9, samples=64.0)
    >>> point.per_second
    1280.0
    >>> point.samples_per_rank
    32.0
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
    """A number of ranks at which the cell failed, and the reason.

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
        Median time of an iteration in each study, in microseconds.
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
        """Whether the difference is larger than the noise; see `ScalingPoint.low_us`."""
        return self.low > 1 or self.high < 1

    @property
    def loss(self) -> Ratio:
        """Share of the throughput that the other study loses, with the interval of the share.

        If the first study ran on bare metal and the other in VMs, this is the virtualization
        tax. It is negative if the other study is faster.
        """
        return Ratio(1 - 1 / self.ratio, 1 - 1 / self.low, 1 - 1 / self.high)


def time_ratio(numerator: ScalingPoint, denominator: ScalingPoint) -> Ratio:
    """Return the ratio of the iteration times of two points, with the interval of the ratio.

    The two medians are independent, so the distances from a median to the ends of its interval,
    on a logarithmic scale, are added in quadrature.

    Examples
    --------
    >>> fast = ScalingPoint(2, 60, 50_000.0, 49_000.0, 51_000.0, 4_000.0, 1.0)
    >>> slow = ScalingPoint(2, 60, 60_000.0, 59_000.0, 61_000.0, 9_000.0, 1.0)
    >>> [round(value, 2) for value in time_ratio(slow, fast)]
    [1.2, 1.17, 1.23]
    """
    value = numerator.iteration_us / denominator.iteration_us
    down = math.hypot(
        math.log(numerator.iteration_us / numerator.low_us),
        math.log(denominator.high_us / denominator.iteration_us),
    )
    up = math.hypot(
        math.log(numerator.high_us / numerator.iteration_us),
        math.log(denominator.iteration_us / denominator.low_us),
    )
    return Ratio(value, value * math.exp(-down), value * math.exp(up))


def allowed_text(efficiency: tuple[float, float]) -> str:
    """Format the efficiency without and with full overlap.

    Examples
    --------
    >>> allowed_text((0.8, 0.95))
    '80% to 95%'
    """
    low, high = (f"{value:.0%}" for value in efficiency)
    return low if low == high else f"{low} to {high}"


def rank_count(ranks: int) -> str:
    """Return ``"1 rank"``, or ``"2 ranks"``."""
    return f"{ranks} ranks" if ranks > 1 else f"{ranks} rank"


def check(points: tuple[ScalingPoint, ...]) -> None:
    """Raise `ValueError` if the values of a file cannot be values of a study."""
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
