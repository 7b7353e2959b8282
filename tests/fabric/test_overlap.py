"""The simulated iteration: when buffers are formed, transferred, and waited for."""

import random
from dataclasses import replace

import pytest

from workbench.fabric.overlap import CommunicationModel, Workload, simulate

MODEL = CommunicationModel(fixed_us=100.0, us_per_byte=0.008, negotiation_us=50.0)
MB = 1 << 20


def evenly(count, *, apart_us=5000.0, size=MB, compute_us=None, tail_us=2000.0):
    """Collectives of one size whose gradients are ready one after another."""
    ready = tuple(apart_us * (place + 1) for place in range(count))
    return Workload(ready, (size,) * count, compute_us or ready[-1], tail_us)


def test_one_collective_takes_half_a_cycle_the_negotiation_and_its_transfer():
    """A lone collective is exposed for as long as it takes."""
    found = simulate(evenly(1), MODEL)
    waited = 500 + 50 + 100 + 0.008 * MB
    assert found.exposed_us == pytest.approx(waited)
    assert found.iteration_us == pytest.approx(5000 + waited + 2000)


def test_communication_that_ends_before_the_compute_costs_nothing():
    """It is hidden, so the iteration is the compute."""
    found = simulate(evenly(4, compute_us=100_000), MODEL)
    assert found.exposed_us == 0
    assert found.iteration_us == 102_000


def test_what_becomes_ready_during_a_transfer_is_fused_up_to_the_threshold():
    """The first travels alone; the others meet in buffers of at most the threshold."""
    work = evenly(9, apart_us=1.0)
    sizes = lambda most: simulate(work, replace(MODEL, cycle_us=0, fusion_bytes=most)).buffer_bytes  # noqa: E731
    assert sizes(128 * MB) == (MB, 8 * MB)
    assert sizes(3 * MB) == (MB, 3 * MB, 3 * MB, 2 * MB)
    assert sizes(0) == (MB,) * 9
    assert sizes(1) == (MB,) * 9  # larger than the threshold, each travels alone


def test_sizes_in_a_buffer_are_rounded_up():
    """Horovod aligns tensors in the fusion buffer to 64 bytes."""
    work = evenly(3, apart_us=0.0, size=65)
    assert simulate(work, MODEL).buffer_bytes == (3 * 128,)


def test_a_long_cycle_divides_the_iteration():
    """In the steady state the iterations take whole cycles, as the last gradient waits for one."""
    found = simulate(evenly(2), replace(MODEL, cycle_us=50_000))
    assert found.iteration_us == pytest.approx(50_000, rel=0.01)


def test_a_token_bucket_passes_its_burst_once_after_an_idle_time():
    """The bytes that pass at once are missing in the first transfer, and refill in idle times."""
    model = replace(MODEL, burst_bytes=MB / 2, cycle_us=0, fusion_bytes=0)
    (first, second) = (end - begin for begin, end in simulate(evenly(2), model).transfers_us)
    assert first == pytest.approx(100 + 0.004 * MB)
    assert first < second < 100 + 0.008 * MB + 1


@pytest.mark.parametrize("seed", range(5))
def test_a_better_fabric_never_takes_longer(seed):
    """A faster link, less latency and cheaper copies shorten iterations, or change nothing."""
    chance = random.Random(seed)
    ready = sorted(chance.uniform(0, 1e5) for _ in range(50))
    work = Workload(
        tuple(ready), tuple(chance.randrange(1, 2 * MB) for _ in ready), ready[-1], 500.0
    )
    model = replace(MODEL, copy_us_per_byte=0.001, fusion_bytes=0, cycle_us=0)
    for name in ("us_per_byte", "fixed_us", "negotiation_us", "copy_us_per_byte"):
        factors = (4, 2, 1, 0.5, 0.25)
        changed = [replace(model, **{name: getattr(model, name) * factor}) for factor in factors]
        durations = [simulate(work, one).iteration_us for one in changed]
        assert durations == sorted(durations, reverse=True)
