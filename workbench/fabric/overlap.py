"""Simulation of one iteration: how much of its communication overlaps with compute.

Gradients become ready during the backward. In cycles, Horovod negotiates which gradients all ranks
have submitted, fuses these into buffers, and transfers one buffer after another. torch.distributed
transfers the buckets of DDP one after another. Training waits for the last transfer before it
updates the parameters. The functions of this module are pure. Times are in microseconds since the
start of the iteration.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

ATOMIC_BYTES = 64
"""Horovod rounds the size of each tensor in a fusion buffer up to a multiple of this."""
FUSION_BYTES = 128 << 20
"""Horovod's default of HOROVOD_FUSION_THRESHOLD."""
CYCLE_US = 1000.0
"""Horovod's default of HOROVOD_CYCLE_TIME."""
_LONG_CYCLE = 0.1
"""Cycles of at least this share of the iteration are simulated over several iterations."""
_ITERATIONS = 8
"""Number of iterations that are then simulated; the second half of them counts."""


@dataclass(frozen=True)
class Workload:
    """The compute of one iteration, and the collectives that reduce its gradients.

    Attributes
    ----------
    ready_us
        Times at which the last rank has submitted each collective, in ascending order.
    sizes_bytes
        Size of each collective.
    compute_us
        Time at which training begins to wait for communication.
    tail_us
        Time from the end of that wait to the end of the iteration.
    """

    ready_us: tuple[float, ...]
    sizes_bytes: tuple[float, ...]
    compute_us: float
    tail_us: float


@dataclass(frozen=True)
class CommunicationModel:
    """Model of the duration of the collectives of a `Workload`.

    Attributes
    ----------
    fixed_us, us_per_byte
        Time of the transfer of a buffer: a constant, and an additional time for each byte.
    burst_bytes
        Bytes that a rate limit passes without delay after the link was idle (a token bucket).
    copy_us_per_byte
        Time of the copies into and out of a buffer with several collectives.
    single_copy_us_per_byte
        Time of the copies of a buffer with a single collective.
    negotiation_us
        Time from the start of a cycle to the response that names the negotiated gradients.
    cycle_us
        Minimum time between the starts of two cycles; 0 without cycles.
    fusion_bytes
        Maximum number of bytes in a buffer; 0 if collectives are not fused.
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
    iteration_us
        Duration of the iteration.
    exposed_us
        Time for which training waits for communication.
    transfer_us
        Sum of the durations of all transfers.
    transfers_us
        Start and end of the transfer of each buffer.
    buffer_bytes
        Size of each buffer.
    """

    iteration_us: float
    exposed_us: float
    transfer_us: float
    transfers_us: tuple[tuple[float, float], ...]
    buffer_bytes: tuple[float, ...]


def simulate(work: Workload, model: CommunicationModel) -> Simulated:
    """Return a simulated iteration in the steady state of a training loop.

    Cycles continue across iterations. If they are short, the first cycle after an idle time begins
    half a cycle after a gradient is ready, which is the mean delay. If they are long, several
    iterations are simulated. The result is then the last iteration, with the mean of the
    durations and of the exposed times of the second half of the iterations.

    Examples
    --------
    >>> work = Workload((100.0, 200.0), (1e6, 1e6), compute_us=200.0, tail_us=50.0)
    >>> network = CommunicationModel(fixed_us=10.0, us_per_byte=1e-3, cycle_us=0.0)
    >>> result = simulate(work, network)
    >>> round(result.iteration_us), round(result.exposed_us), len(result.transfers_us)
    (2170, 1920, 2)
    """
    sums = [0.0, *accumulate(-(-size // ATOMIC_BYTES) * ATOMIC_BYTES for size in work.sizes_bytes)]
    result, _ = _iteration(work, model, sums, None)
    if model.cycle_us < _LONG_CYCLE * result.iteration_us:
        return result
    last_cycle = 0.0
    results = []
    for _ in range(_ITERATIONS):
        result, last_cycle = _iteration(work, model, sums, last_cycle)
        last_cycle -= result.iteration_us
        results.append(result)
    steady = results[_ITERATIONS // 2 :]
    mean_us = sum(iteration.iteration_us for iteration in steady) / len(steady)
    exposed_us = sum(iteration.exposed_us for iteration in steady) / len(steady)
    return replace(result, iteration_us=mean_us, exposed_us=exposed_us)


def _iteration(
    work: Workload, model: CommunicationModel, sums: Sequence[float], last_cycle: float | None
) -> tuple[Simulated, float]:
    """Return a simulated iteration, and the start of its last cycle.

    `sums` has the bytes before each collective and, at the end, of all collectives. `last_cycle` is
    the start of the last cycle before the iteration. If `last_cycle` is None, the first cycle
    after an idle time begins after the mean delay.
    """
    ready = work.ready_us
    cycle = model.cycle_us
    fusion = model.fusion_bytes
    count = len(ready)
    sent = 0
    thread_free = 0.0
    idle_since = float("-inf")
    has_last_cycle = last_cycle is not None
    cycle_begin = last_cycle if last_cycle is not None else float("-inf")
    transfers: list[tuple[float, float]] = []
    sizes: list[float] = []
    while sent < count:
        first_ready = ready[sent]
        next_cycle = max(thread_free, cycle_begin + cycle)
        if first_ready > next_cycle:
            continues_cycles = bool(has_last_cycle and cycle)
            skipped = -(-(first_ready - next_cycle) // cycle) if continues_cycles else 0.0
            next_cycle = (
                next_cycle + skipped * cycle if continues_cycles else first_ready + cycle / 2
            )
        cycle_begin = next_cycle
        ready_count = max(bisect_right(ready, cycle_begin), sent + 1)
        now = cycle_begin + model.negotiation_us
        while sent < ready_count:
            end = sent + 1
            if fusion:
                end = max(
                    end, bisect_right(sums, sums[sent] + fusion, sent + 1, ready_count + 1) - 1
                )
            size = sums[end] - sums[sent]
            is_fused = end - sent > 1
            copy = size * (model.copy_us_per_byte if is_fused else model.single_copy_us_per_byte)
            start = now + copy / 2
            burst_bytes_passed = min(
                model.burst_bytes, (start - idle_since) / model.us_per_byte, size
            )
            idle_since = start + model.fixed_us + (size - burst_bytes_passed) * model.us_per_byte
            transfers.append((start, idle_since))
            sizes.append(size)
            now = idle_since + copy / 2
            sent = end
        thread_free = now
    exposed = max(0.0, thread_free - work.compute_us)
    transfer_sum = sum(end - start for start, end in transfers)
    duration = work.compute_us + exposed + work.tail_us
    return Simulated(duration, exposed, transfer_sum, tuple(transfers), tuple(sizes)), cycle_begin
