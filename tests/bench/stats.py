"""Medians, spreads, and intervals by bootstrap."""

import random
import statistics


def spread(values):
    """The median and the range, as text."""
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def interval(values, share=0.95, turns=4000, seed=0, of=statistics.fmean):
    """Return the mean, and the interval that contains it with probability `share`, by bootstrap.

    Or of another statistic than the mean.
    """
    chance = random.Random(seed)
    found = sorted(of(chance.choices(values, k=len(values))) for _ in range(turns))
    edge = int(turns * (1 - share) / 2)
    return of(values), found[edge], found[-edge - 1]
