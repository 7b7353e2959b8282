"""The lines of Python where ranks spend time in no phase of training."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from workbench.ranks import phrase

if TYPE_CHECKING:
    from workbench.wire.sample_messages import LineSamples

_MAX_LINES = 3
"""Maximum number of lines that are named."""
_MIN_SHARE = 0.1
"""A line is named if it has at least this share of the sampled time."""
_MIN_RANK_SHARE = 0.2
"""Minimum time of a rank at a line, as a share of the longest time there, to name the rank."""


def sampled_lines(samples: dict[int, LineSamples]) -> str:
    """Return the lines with most of the time, with their shares; empty without samples."""
    total: Counter[str] = Counter()
    by_rank: dict[str, dict[int, float]] = defaultdict(dict)
    for rank, sample in sorted(samples.items()):
        for line, spent_s in zip(sample.lines, sample.spent_s, strict=True):
            total[line] += spent_s  # type: ignore[assignment]
            by_rank[line][rank] = spent_s
    total_s = sum(total.values())
    named = [(line, s / total_s) for line, s in total.most_common(_MAX_LINES) if s > 0]
    return "; ".join(
        f"{share:.0%} in {line}{_ranks_at(by_rank[line], len(samples))}"
        for line, share in named
        if share >= _MIN_SHARE or line == named[0][0]
    )


def _ranks_at(spent_s: dict[int, float], ranks: int) -> str:
    """Return the ranks that spent time at a line in parentheses; empty if all ranks did."""
    longest_s = max(spent_s.values())
    at_line = [rank for rank, s in spent_s.items() if s >= _MIN_RANK_SHARE * longest_s]
    return f" ({phrase(at_line)})" if len(at_line) < ranks else ""
