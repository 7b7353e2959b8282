"""Buffers and service times of an iteration whose truth is known."""

import numpy as np
import pytest

from workbench.timings.buffers import number_buffers, service_times
from workbench.wire import Layout


def layout_of(libraries, process_sets=None):
    """The collectives of an iteration, by what transferred them."""
    n = len(libraries)
    return Layout(
        0, tuple(map(str, range(n))), (1000,) * n, (1,) * n, ("allreduce",) * n,
        process_sets or (0,) * n, (2,) * n, ("optimizer",) * n, tuple(libraries),
    )  # fmt: skip


def rounds(seed, ranks, collectives, fused):
    """The times of an iteration on all ranks, each with its own clock, and the truth.

    Ranks submit when they like. A buffer begins when all have submitted it and the one before
    is done; each rank has its response a little later, and all end it together.
    """
    draw = np.random.default_rng(seed)
    submitted = np.sort(draw.integers(0, 20_000, (ranks, collectives)), axis=1)
    submitted[draw.integers(ranks)] += 300_000  # one rank is late
    numbers = np.arange(collectives) // fused
    took = draw.integers(100_000, 200_000, numbers.max() + 1)
    responded, began, ended = (np.empty_like(submitted) for _ in range(3))
    free = 0
    for number in range(numbers.max() + 1):
        own = numbers == number
        begins = max(free, submitted[:, own].max())
        delays = draw.integers(0, 5_000, ranks)
        delays[draw.integers(ranks)] = 0
        free = begins + delays.max() + took[number]
        responded[:, own] = (begins + delays)[:, None]
        began[:, own] = (begins + delays + 10)[:, None]
        ended[:, own] = free
    clocks = draw.integers(0, 10**9, (ranks, 1, 1))
    times = np.stack([submitted, responded, began, ended, ended + 5], axis=1) + clocks
    return times, numbers, took[numbers]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("fused", [1, 4])
def test_buffers_and_transfers_are_the_true_ones(seed, ranks, fused):
    """Each rank finds the same buffers; a transfer is that of the rank that began last."""
    times, numbers, took = rounds(seed, ranks, 12, fused)
    layout = layout_of(["GLOO_ALLREDUCE"] * 12)
    for own in times:
        assert number_buffers(own, layout).tolist() == numbers.tolist()
    assert service_times(times, layout) == pytest.approx(took - 10)


@pytest.mark.parametrize("seed", range(20))
def test_without_a_known_transfer_its_time_is_an_upper_bound(seed):
    """Of DDP's buckets only begin and end are known; waiting for a late rank is not counted."""
    times, _, took = rounds(seed, 3, 8, 1)
    served = service_times(times, layout_of([""] * 8))
    assert (served >= took - 10).all()
    assert (served <= took + 5_000 + 300).all()


def test_process_sets_and_unknown_responses_are_buffers_of_their_own():
    """The response of another process set is another one, even at the same time."""
    times = np.array([[0, 0, 0, 0], [5] * 4, [6] * 4, [9] * 4, [10] * 4])
    layout = layout_of(["GLOO_ALLREDUCE", "GLOO_ALLREDUCE", "", ""], (0, 1, 0, 0))
    assert len(set(number_buffers(times, layout).tolist())) == 4
    layout = layout_of(["GLOO_ALLREDUCE"] * 4)
    assert number_buffers(times, layout).tolist() == [0] * 4


def test_an_iteration_without_collectives():
    """Nothing in, nothing out."""
    assert number_buffers(np.empty((5, 0), np.int64), layout_of([])).shape == (0,)
    assert service_times(np.empty((2, 5, 0), np.int64), layout_of([])).shape == (0,)
