"""Simulation of one iteration: how much of its communication overlaps with compute.

Gradients become ready during the backward. Horovod negotiates in cycles which of them all ranks
have submitted, fuses these into buffers, and transfers one buffer after another; torch.distributed
transfers DDP's buckets one after another. Training waits for the last transfer before it updates
the parameters. Functions of this module are pure; times are in microseconds since the start of the
iteration.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

ATOMIC_BYTES = 64
"""Horovod rounds the size of each tensor in a fusion buffer up to a multiple of this."""
FUSION_BYTES = 128 << 20
"""Horovod's default of HOROVOD_FUSION_THRESHOLD."""
CYCLE_US = 1000.0
"""Horovod's default of HOROVOD_CYCLE_TIME."""
_LONG_CYCLE = 0.1
"""From this share of the iteration on, cycles are simulated over several iterations."""
_ITERATIONS = 8


@dataclass(frozen=True)
class Workload:
    """What one iteration computes, and the gradients that it reduces.

    Attributes
    ----------
    ready_us
        When the last rank has submitted each collective, in ascending order.
    sizes_bytes
        The size of each.
    compute_us
        When training begins to wait for communication.
    tail_us
        From the end of that wait to the end of the iteration.
    """

    ready_us: tuple[float, ...]
    sizes_bytes: tuple[float, ...]
    compute_us: float
    tail_us: float


@dataclass(frozen=True)
class CommunicationModel:
    """How long the collectives of a `Workload` take.

    Attributes
    ----------
    fixed_us, us_per_byte
        Time of the transfer of a buffer: for any size, and in addition for each byte.
    burst_bytes
        Bytes that a rate limit lets pass at once after the link was idle (a token bucket).
    copy_us_per_byte, single_copy_us_per_byte
        Copies of a buffer of several collectives, into and out of it, and of a single one.
    negotiation_us
        From the begin of a cycle to the response.
    cycle_us
        Least time between the begins of two cycles; 0 without cycles.
    fusion_bytes
        Most bytes in a buffer; 0 if no collectives are fused.
    """

    fixed_us: float
    us_per_byte: float
    burst_bytes: float = 0.0
    copy_us_per_byte: float = 0.0
    single_copy_us_per_byte: float = 0.0
    negotiation_us: float = 0.0
    cycle_us: float = CYCLE_US
    fusion_bytes: float = FUSION_BYTES


@dataclass(frozen=True)
class Simulated:
    """One simulated iteration.

    Attributes
    ----------
    iteration_us, exposed_us
        Its duration, and how long training waits for communication.
    transfer_us
        Sum of all transfers.
    transfers_us
        Begin and end of the transfer of each buffer.
    buffer_bytes
        The size of each buffer.
    """

    iteration_us: float
    exposed_us: float
    transfer_us: float
    transfers_us: tuple[tuple[float, float], ...]
    buffer_bytes: tuple[float, ...]


def simulate(work: Workload, model: CommunicationModel) -> Simulated:
    """Return an iteration of `work` over `model`, in the steady state of a training loop.

    Cycles run on through iterations. If they are short, the first one after an idle time begins
    half a cycle after a gradient is ready, which is the mean; long ones are followed through
    several iterations, and the last iteration is returned with the mean of their durations.
    """
    sums = [0.0, *accumulate(-(-size // ATOMIC_BYTES) * ATOMIC_BYTES for size in work.sizes_bytes)]
    result, _ = _iteration(work, model, sums, None)
    if model.cycle_us < _LONG_CYCLE * result.iteration_us:
        return result
    last_cycle, found = 0.0, []
    for _ in range(_ITERATIONS):
        result, last_cycle = _iteration(work, model, sums, last_cycle)
        last_cycle -= result.iteration_us
        found.append(result)
    steady = found[_ITERATIONS // 2 :]
    mean_us = sum(one.iteration_us for one in steady) / len(steady)
    exposed_us = sum(one.exposed_us for one in steady) / len(steady)
    return Simulated(mean_us, exposed_us, *list(vars(result).values())[2:])


def _iteration(
    work: Workload, model: CommunicationModel, sums: Sequence[float], last_cycle: float | None
) -> tuple[Simulated, float]:
    """Return a simulated iteration, and when its last cycle began.

    `last_cycle` is when the last one before the iteration began; None for the mean.
    """
    ready, cycle, fusion = work.ready_us, model.cycle_us, model.fusion_bytes
    count, place, free, idle_since = len(ready), 0, 0.0, float("-inf")
    known = last_cycle is not None
    begin = last_cycle if last_cycle is not None else float("-inf")
    transfers: list[tuple[float, float]] = []
    sizes: list[float] = []
    while place < count:
        first, next_cycle = ready[place], max(free, begin + cycle)
        if first > next_cycle:
            skipped = -(-(first - next_cycle) // cycle) if cycle and known else 0.0
            next_cycle = next_cycle + skipped * cycle if known and cycle else first + cycle / 2
        begin = next_cycle
        until = max(bisect_right(ready, begin), place + 1)
        now = begin + model.negotiation_us
        while place < until:
            end = place + 1
            if fusion:
                end = max(end, bisect_right(sums, sums[place] + fusion, place + 1, until + 1) - 1)
            size = sums[end] - sums[place]
            many = end - place > 1
            copy = size * (model.copy_us_per_byte if many else model.single_copy_us_per_byte)
            start = now + copy / 2
            passed = min(model.burst_bytes, (start - idle_since) / model.us_per_byte, size)
            idle_since = start + model.fixed_us + (size - passed) * model.us_per_byte
            transfers.append((start, idle_since))
            sizes.append(size)
            now = idle_since + copy / 2
            place = end
        free = now
    exposed = max(0.0, free - work.compute_us)
    spent = sum(end - start for start, end in transfers)
    duration = work.compute_us + exposed + work.tail_us
    return Simulated(duration, exposed, spent, tuple(transfers), tuple(sizes)), begin
