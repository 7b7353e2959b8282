"""Medians, spreads, and intervals by bootstrap."""

import random
import statistics


def spread(values):
    """The median and the range, as text."""
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def interval(values, share=0.95, turns=4000, seed=0):
    """The mean, and the interval that holds it with `share`, by bootstrap."""
    chance = random.Random(seed)
    means = sorted(statistics.fmean(chance.choices(values, k=len(values))) for _ in range(turns))
    edge = int(turns * (1 - share) / 2)
    return statistics.fmean(values), means[edge], means[-edge - 1]
