"""Times of an allreduce by a line that was fitted, and by models."""

import pytest

from workbench.errors import UsageError
from workbench.fabric import fit, halving_doubling_us, ring_us, tree_us


def test_a_fit_finds_the_line_that_made_the_times():
    """From times on a line, the line comes back; its error is that of the worst size."""
    sizes = [4096, 65536, 1 << 20, 1 << 24]
    fabric = fit(sizes, [50 + 0.001 * size for size in sizes], 4)
    assert fabric.fixed_us == pytest.approx(50)
    assert fabric.us_per_byte == pytest.approx(0.001)
    assert fabric.error < 1e-9
    assert fabric.busbw_gbps == pytest.approx(8 / 1e3 / 0.001 * 1.5)
    noisy = fit([1000, 2000], [100, 300], 2)
    assert noisy.fixed_us >= 0


def test_a_fit_takes_two_sizes():
    """One size gives no line."""
    with pytest.raises(UsageError, match="two sizes"):
        fit([100, 100], [1, 2], 2)


def test_cost_models_by_hand():
    """BERT-Large's 1.36 GB over 25 GbE on four ranks: 0.65 s by the exact ring."""
    assert ring_us(1.36e9, 4, 25) == pytest.approx(652_800)
    assert ring_us(0, 4, 25, latency_us=10) == 60
    assert halving_doubling_us(0, 8, 25, latency_us=10) == 60
    assert tree_us(1e6, 8, 8, latency_us=1) == pytest.approx(2006)
    assert [model(1e6, 1, 10, 5) for model in (ring_us, halving_doubling_us, tree_us)] == [0, 0, 0]
