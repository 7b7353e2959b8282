"""The interval of a saving, from how it varies between iterations."""

import numpy as np
import pytest

from workbench.advisor.interval import interval


def test_a_long_iteration_counts_as_much_at_the_ends_as_in_the_middle():
    """The interval of a single long one contains it in part, and has its mean near the middle."""
    found = []
    for place in (0, 1, 32, 62, 63):
        values = np.full(64, 10.0)
        values[place] = 1000.0
        found.append(interval(values, 100.0))
    lows, highs = zip(*found, strict=True)
    assert highs == pytest.approx([highs[2]] * 5, rel=0.2)
    assert lows == pytest.approx([lows[2]] * 5, rel=0.2)
