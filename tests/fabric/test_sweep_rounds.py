"""How often a sweep repeats each size, on simulated fabrics whose times are known."""

import numpy as np
import pytest

from workbench.fabric.calibration import plan_round

SIZES = 1 << np.arange(12, 25)
SECONDS, BARRIER_S = 30.0, 1e-3


def sweep(times_us, disturbed):
    """Return the rounds of a sweep, and how long it took.

    Each repetition takes the size's time, and a random share more: of `disturbed` in the mean.
    """
    chance = np.random.default_rng(0)
    rounds, elapsed = [[[us] for us in times_us]], sum(times_us) / 1e6
    while counts := plan_round(rounds, elapsed, SECONDS):
        extra = [chance.exponential(disturbed, count) for count in counts]
        rounds.append([list(us * (1 + more)) for us, more in zip(times_us, extra, strict=True)])
        elapsed += sum(us + BARRIER_S * 1e6 for size in rounds[-1] for us in size) / 1e6
    return rounds, elapsed


def repetitions(rounds):
    return [sum(map(len, size)) for size in zip(*rounds, strict=True)]


@pytest.mark.parametrize("gbps", [0.25, 2.0])
def test_a_quiet_fabric_is_measured_soon(gbps):
    """All sizes are measured in several rounds, and there is no need for more."""
    rounds, took_s = sweep(1000 + SIZES * 8e-3 / gbps, disturbed=0.005)
    assert min(repetitions(rounds)) >= 4
    assert took_s < SECONDS / 2


def test_uncertain_small_sizes_take_the_time_that_large_ones_leave():
    """On cores that are busy: large sizes are limited to their share, small ones go on."""
    rounds, took_s = sweep(3000 + SIZES * 8e-3 / 0.25, disturbed=1.0)
    counts = repetitions(rounds)
    assert min(counts[:6]) >= 80
    assert 4 <= counts[-1] <= 10
    assert 0.9 * SECONDS < took_s < 1.2 * SECONDS


def test_a_disturbed_first_repetition_does_not_decide():
    """A small size whose warming up took long is repeated as often as the others."""
    times = 3000 + SIZES * 8e-3
    rounds = [[[us] for us in times], *[[[us] * 3 for us in times]] * 4]
    rounds[0][0] = [1e5]
    counts = plan_round(rounds, 5.0, SECONDS)
    assert counts[0] == counts[1] > 1


def test_three_rounds_are_measured_even_if_there_is_no_time():
    rounds, _ = sweep(1000 + SIZES * 1.0, disturbed=0.1)
    assert len(rounds) == 1 + 3
