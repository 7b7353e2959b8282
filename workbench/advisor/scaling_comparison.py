"""Two scaling studies compared: TCP and RDMA, before and after, a bare host and VMs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from workbench.advisor.scaling_record import Ratio, ScalingPoint, ScalingStudy, time_ratio
from workbench.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

_SAME = 0.005
"""Batches and gradients are the same if they differ by no more than this share."""


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


def compare(one: ScalingStudy, other: ScalingStudy) -> StudyComparison:
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
