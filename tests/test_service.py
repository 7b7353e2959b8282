"""Buffers and service times are inferred from rounds of looking, and hold the truth."""

import numpy as np
import pytest

from workbench.timings.service import serve


def rounds(seed, ranks, collectives, fused):
    """An iteration whose truth is known: buffers, their times, and what each rank saw of them.

    Ranks submit at moments of their own, on clocks of their own; a buffer begins
    when all have submitted it and the one before is done; ranks look at random.
    """
    draw = np.random.default_rng(seed)
    submitted = np.sort(draw.uniform(0, 2000, (ranks, collectives)), axis=1)
    submitted[draw.integers(ranks)] += 30_000  # one rank is late
    if fused == 1:  # far apart, so that Horovod fuses none
        submitted += np.arange(collectives) * 6_000
    numbers = np.arange(collectives) // fused
    done, took, free = np.zeros(collectives), np.zeros(collectives), 0.0
    for number in range(numbers.max() + 1):
        members = numbers == number
        begins = max(free, submitted[:, members].max())
        took[members] = draw.uniform(10_000, 20_000)
        free = begins + took[members][0]
        done[members] = free
    looks = np.sort(draw.uniform(0, free + 500, (ranks, 2000)), axis=1)
    looks[:, -1] = free + 500
    unfinished, finished = np.empty_like(submitted), np.empty_like(submitted)
    for rank in range(ranks):
        after = np.searchsorted(looks[rank], done)
        finished[rank] = looks[rank][after]
        unfinished[rank] = np.maximum(looks[rank][np.maximum(after - 1, 0)], submitted[rank])
    clocks = draw.uniform(-1e9, 1e9, (ranks, 1))
    return (submitted + clocks, unfinished + clocks, finished + clocks), numbers, took


def ask(times, count):
    return serve(*times, np.full(count, 1000), ("allreduce",) * count, (0,) * count)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("fused", [1, 4])
def test_the_error_covers_the_truth(seed, ranks, fused):
    """Wherever the buffers are inferred rightly, the service time is within its error."""
    times, numbers, took = rounds(seed, ranks, 12, fused)
    served = ask(times, 12)
    same = (served.buffer[:, None] == served.buffer) == (numbers[:, None] == numbers)
    if same.all():
        assert (np.abs(served.service - took) <= served.error + 1e-6).all()
    # what finished at once is never told apart
    assert (same | (numbers[:, None] != numbers)).all()


def test_most_inferences_are_right():
    """With looks as close as the submission hooks make them, nearly every buffer is found."""
    right = 0
    for seed in range(50):
        times, numbers, _ = rounds(seed, 2, 12, 4)
        buffer = ask(times, 12).buffer
        right += bool(((buffer[:, None] == buffer) == (numbers[:, None] == numbers)).all())
    assert right >= 40


def test_kinds_process_sets_and_sizes_keep_buffers_apart():
    """Horovod fuses neither broadcasts nor process sets, and nothing beyond its threshold."""
    times = tuple(np.full((2, 3), moment) for moment in (0.0, 500.0, 1000.0))
    sizes = np.full(3, 1000)

    def numbers(sizes=sizes, kinds=("allreduce",) * 3, process_sets=(0, 0, 0)):
        return serve(*times, sizes, kinds, process_sets).buffer.tolist()

    assert numbers() == [0, 0, 0]
    assert numbers(kinds=("broadcast",) * 3) == [0, 1, 2]
    assert len(set(numbers(kinds=("allreduce", "allgather", "allreduce")))) == 3
    assert len(set(numbers(process_sets=(0, 1, 1)))) == 2
    assert numbers(sizes=np.array([100 << 20, 100 << 20, 1])) == [0, 1, 1]


def test_an_iteration_without_collectives():
    """Nothing in, nothing out."""
    empty = np.empty((2, 0))
    assert serve(empty, empty, empty, np.empty(0, np.int64), (), ()).buffer.shape == (0,)
