"""The lines of Python where ranks spend time in no phase of training."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from workbench.ranks import phrase

if TYPE_CHECKING:
    from workbench.wire.sample_messages import LineSamples

_LINES = 3
"""Most lines that are named."""
_LEAST = 0.1
"""Least share of the time at a line that is named."""
_OWN = 0.2
"""A line is that of some ranks if the others spend less than this share of the most there."""


def sampled_lines(samples: dict[int, LineSamples]) -> str:
    """Return the lines with most of the time, and its share; empty without samples."""
    total: Counter[str] = Counter()
    by_rank: dict[str, dict[int, float]] = defaultdict(dict)
    for rank, one in sorted(samples.items()):
        for line, spent_s in zip(one.lines, one.spent_s, strict=True):
            total[line] += spent_s  # type: ignore[assignment]
            by_rank[line][rank] = spent_s
    every = sum(total.values())
    named = [(line, s / every) for line, s in total.most_common(_LINES) if s > 0]
    return "; ".join(
        f"{share:.0%} in {line}{_whose(by_rank[line], len(samples))}"
        for line, share in named
        if share >= _LEAST or line == named[0][0]
    )


def _whose(spent_s: dict[int, float], ranks: int) -> str:
    """Return the ranks that spent time at a line, if others did not."""
    most = max(spent_s.values())
    own = [rank for rank, s in spent_s.items() if s >= _OWN * most]
    return f" ({phrase(own)})" if len(own) < ranks else ""
