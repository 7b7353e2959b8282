"""A fit of times that are not equally certain."""

import numpy as np
import pytest

from workbench.fabric import fit

SIZES = (1 << np.arange(12, 23)).tolist()


def test_uncertain_times_hardly_move_a_fit():
    """Half of the small sizes were disturbed, and are known to be."""
    true = np.array([500 + size * 0.02 for size in SIZES])
    noise = np.full(len(SIZES), 0.01)
    noise[:8:2] = 0.5
    measured = true * np.where(noise > 0.1, 1.8, 1.0)
    found = fit(SIZES, measured, 2, noise=noise.tolist())
    assert found.us_per_byte == pytest.approx(0.02, rel=0.01)
    assert found.predict_us(3 << 13) == pytest.approx(500 + 0.02 * (3 << 13), rel=0.05)


def test_the_order_of_the_sizes_does_not_matter():
    true, noise = [500 + size * 0.02 for size in SIZES], [0.01 * (n + 1) for n in range(11)]
    there, back = fit(SIZES, true, 2, noise=noise), fit(SIZES[::-1], true[::-1], 2, (), noise[::-1])
    assert there == back
