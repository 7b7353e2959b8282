"""Measurement of a fabric with the ranks and the backend that train over it."""

from __future__ import annotations

import logging
import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from workbench.errors import UsageError
from workbench.fabric.fit import ONE_RANK, FittedFabric, fit

RunCell = Callable[[str, Callable[[str], None]], Mapping[int, Any]]
"""Function that runs the source of a measurement as a cell, and returns its value on each rank.

The source can use the variables `ring` (its `Backend`), `device`, `rank` and `world_size`, and the
variables of `workbench.rank.measurement.measure`. The user's cells do not change these variables.
While the cell runs, the second argument is called several times a second with the cell's output.
"""

_log = logging.getLogger(__name__)

Rates = np.ndarray[Any, np.dtype[np.float64]]
"""Rate of each run of copies, in GB/s."""

Rounds = list[list[list[float]]]
"""Microseconds of each repetition, by round and size."""

SIZES_BYTES = tuple(1 << power for power in range(12, 25))
"""4 KB to 16 MB. Over a slow fabric, the sweep ends with the first size that takes more than
`_LONG_SHARE` of the sweep's time."""
HELD_OUT_BYTES = tuple(3 << power for power in range(12, 24, 2))
"""Sizes that are measured, but not used by the fit. They show how well the fit predicts
other sizes."""

_FULL_ROUNDS = 8
"""Number of rounds after which only sizes with noisy times are measured."""
_MIN_ROUNDS = 3
"""Number of rounds that measure all sizes, even if the sweep then takes too long."""
_MAX_NOISE = 0.01
"""A size is noisy while the relative standard error of its time exceeds this."""
_SIZE_S = 0.015
"""Seconds for which each round repeats one size, but at most `_MAX_REPETITIONS` times."""
_MAX_REPETITIONS = 8
_LONG_SHARE = 1 / 40
"""If an allreduce takes more than this share of the sweep's time, larger sizes are not measured."""
_MIN_SIZES = 4
"""Number of sizes that are measured even if they take long."""
_LIMIT_FACTOR = 4.0
"""Multiple of the intended time by which a measurement is allowed to exceed `_MIN_LIMIT_S`."""
_MIN_LIMIT_S = 180.0
_SHORTEST_SHARE = 0.25
"""Share of the repetitions that is used: the shortest ones, because disturbances only add time."""

# Ranks use means over all ranks, which are equal on every rank, so that all decide the same.
_SWEEP = """
def _workbench_sweep(sizes, seconds):
    from workbench.fabric.calibration import plan_round
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda _: None
    def time_once(size):
        synchronize(device)
        ring.barrier()
        began = time.perf_counter()
        ring.allreduce(tensors[size], f"workbench.sweep.{{size}}")
        synchronize(device)
        return time.perf_counter() - began
    def means(values, count):
        padded = [*values, *[0.0] * (count - len(values))]
        sums = torch.tensor(padded, dtype=torch.float64, device=device)
        ring.allreduce(sums, f"workbench.sweep.means.{{count}}")
        return [total / world_size for total in sums.tolist()]
    began = time.perf_counter()
    tensors = {{}}
    warm_up = []
    for size in sizes:  # In ascending order; the shorter of two repetitions is used.
        tensors[size] = torch.zeros(size // 4, dtype=torch.float32, device=device)
        took = min(means([time_once(size), time_once(size)], 2))
        if took > {long_share} * seconds:  # The repetitions may only have been disturbed.
            took = min(took, *means([time_once(size), time_once(size)], 2))
        warm_up.append([took * 1e6])
        if len(tensors) >= {min_sizes} and took > {long_share} * seconds:
            break
    rounds = [warm_up]
    (elapsed,) = means([time.perf_counter() - began], 1)
    while counts := plan_round(rounds, elapsed, seconds):
        if rank == 0:
            show(f"{{min(1.0, elapsed / seconds):.0%}}")
        times_us = [
            time_once(size) * 1e6 for size, count in zip(tensors, counts) for _ in range(count)
        ]
        max_values = {max_repetitions} * len(tensors) + 1
        elapsed, *means_us = means([time.perf_counter() - began, *times_us], max_values)
        remaining_us = iter(means_us)
        rounds.append([[next(remaining_us) for _ in range(count)] for count in counts])
    return list(tensors), rounds
"""

# Returns GB/s of each run of copies. The rates of copies within one memory count the bytes read
# and the bytes written, as the STREAM benchmark does. A run repeats a copy, so that it takes
# milliseconds. Events time the copies of a GPU, because the launch of a copy within its memory
# takes longer than the copy.
_COPIES = """
def _workbench_copies():
    def seconds(copy, count, on_gpu):
        if not on_gpu:
            began = time.perf_counter()
            for _ in range(count):
                copy()
            return time.perf_counter() - began
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            copy()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3
    def rates(target, source, factor):
        copy = lambda: target.copy_(source, non_blocking=True)
        on_gpu = target.is_cuda or source.is_cuda
        seconds(copy, 2, on_gpu)
        count = max(1, math.ceil({run_s} / seconds(copy, 1, on_gpu)))
        moved = factor * source.nbytes * count
        return [moved / seconds(copy, count, on_gpu) / 1e9 for _ in range({runs})]
    def memory(memory_device, size):
        source = torch.zeros(size // 4, dtype=torch.float32, device=memory_device)
        return rates(torch.empty_like(source), source, 2)
    rates_by_kind = {{"host memory": memory("cpu", {host_bytes})}}
    if device.type == "cuda":
        max_bytes = torch.cuda.mem_get_info(device)[0] // 8
        rates_by_kind["GPU memory"] = memory(device, min({gpu_bytes}, max_bytes))
        size = min({pinned_bytes}, max_bytes) // 4
        gpu_tensor = torch.zeros(size, dtype=torch.float32, device=device)
        host_tensor = torch.zeros(size, dtype=torch.float32, device="cpu", pin_memory=True)
        rates_by_kind["PCIe"] = rates(gpu_tensor, host_tensor, 1)
        rates_by_kind["device to host"] = rates(host_tensor, gpu_tensor, 1)
    return rates_by_kind
"""
_RUN_S = 0.01
"""Minimum seconds of a run of copies."""
_RUNS = 9
"""Number of runs for each kind of copies."""
_HOST_BYTES = 64 << 20
_PINNED_BYTES = 256 << 20
_GPU_BYTES = 1 << 30
_CALLS = "(*_workbench_sweep({sizes}, {seconds}), _workbench_copies())"


def limit_s(seconds: float) -> float:
    """Return the seconds after which a measurement of about `seconds` is interrupted."""
    return _MIN_LIMIT_S + _LIMIT_FACTOR * seconds


def measure(
    run: RunCell, n: int, seconds: float, show: Callable[[str], None] | None = None
) -> FittedFabric:
    """Measure a sweep of allreduces over all ranks, fit lines to their times, and measure copies.

    A single rank measures only copies: within the memory of its GPU and of its VM, and between the
    two.

    The time of an allreduce begins at the end of a barrier, and is the mean over ranks, as
    nccl-tests reports it. The tensors are on each rank's `device`. Several rounds measure all
    sizes in turn, so that a change of the fabric affects all sizes. Further rounds measure only
    sizes with uncertain times. The time of a size is the mean of the shortest quarter of its
    repetitions, so that other processes disturb the result little. Sizes of the fit and held-out
    sizes are measured alike.

    If the first and the second half of the rounds differ, the result's `caveat` and a warning say
    so. If the fit is
    unreliable, `explain` does not use it for advice.

    Parameters
    ----------
    run
        Runs the measurement on all ranks.
    n
        The number of ranks.
    seconds
        A further round begins only if it can end within this time. Over a slow fabric fewer sizes
        are measured.
    show
        Called with the output of the cell, instead of printing the progress.
    """
    copies = _COPIES.format(
        run_s=_RUN_S, runs=_RUNS, host_bytes=_HOST_BYTES, pinned_bytes=_PINNED_BYTES,
        gpu_bytes=_GPU_BYTES,
    )  # fmt: skip
    _log.info("calibration of %d ranks starts, for about %g s", n, seconds)
    if n < 2:
        return _copies_only(run(copies + "_workbench_copies()", lambda _: None))
    sizes = sorted((*SIZES_BYTES, *HELD_OUT_BYTES))
    sweep = _SWEEP.format(
        max_repetitions=_MAX_REPETITIONS, long_share=_LONG_SHARE, min_sizes=_MIN_SIZES
    )
    calls = _CALLS.format(sizes=repr(sizes), seconds=repr(seconds))
    with ProgressLine("calibrating") as progress:
        values = run(sweep + copies + calls, progress.show if show is None else show)
    swept_sizes, rounds, _ = next(iter(values.values()))
    copy_rates = {rank: rates for rank, (_, _, rates) in values.items()}
    fabric = replace(
        _with_copies(_fitted(swept_sizes, rounds, n), copy_rates),
        disagreement=_disagreement(rounds),
    )
    _log.info(
        "calibration of %d ranks ended after %d rounds of %d sizes: error %.3f, disagreement %.3f",
        n, len(rounds), len(swept_sizes), fabric.error, fabric.disagreement,
    )  # fmt: skip
    if fabric.caveat:
        warnings.warn(fabric.caveat, UserWarning, stacklevel=4)
    return fabric


def _copies_only(values: Mapping[int, Mapping[str, Sequence[float]]]) -> FittedFabric:
    """Return the result of a single rank, which has no collectives."""
    if not any("GPU memory" in rates for rates in values.values()):
        raise UsageError(
            "Cannot calibrate on 1 rank without a GPU: a collective takes at least 2. Start a "
            "cluster of more."
        )
    return _with_copies(ONE_RANK, values)


def _with_copies(
    fabric: FittedFabric, values: Mapping[int, Mapping[str, Sequence[float]]]
) -> FittedFabric:
    """Add the median rate of copies by rank.

    Also add half of the range of the rates, as a share of the median.
    """
    medians, spreads = (
        {
            str(rank): {kind: statistic(np.asarray(rates)) for kind, rates in copies.items()}
            for rank, copies in values.items()
        }
        for statistic in (_median, _spread)
    )
    return replace(fabric, devices=medians, device_spreads=spreads)


def _median(rates: Rates) -> float:
    return float(np.median(rates))


def _spread(rates: Rates) -> float:
    return float(np.ptp(rates) / 2 / np.median(rates))


class ProgressLine:
    """The progress of a cell, in one line of standard output.

    Standard error is not used, because notebooks mark its text like an error.

    Parameters
    ----------
    activity
        The text before the progress, such as ``"calibrating"``.
    """

    def __init__(self, activity: str) -> None:
        self._activity = activity
        self._shown = ""

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if self._shown:
            end = "stopped" if failed else "done"
            self._write(f"\r{self._activity}: {end}".ljust(len(self._shown)) + "\n")

    def show(self, output: str) -> None:
        """Show the last line of a cell's output, such as ``[rank 0] 35%``."""
        percentage = output.rstrip().rpartition(" ")[2]
        text = f"\r{self._activity}: {percentage}"
        if percentage.endswith("%") and text != self._shown:
            self._shown = text
            self._write(text)

    @staticmethod
    def _write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def plan_round(rounds: Rounds, elapsed_s: float, seconds: float) -> list[int]:
    """Return the number of repetitions of each size in the next round; empty to end the sweep.

    Each size gets at most an equal share of the elapsed time. Large sizes take long and vary
    little, so most repetitions are left to the small sizes.

    Parameters
    ----------
    rounds
        Times in microseconds of each repetition, by round and size. The first round has one
        repetition of each size.
    elapsed_s
        Time that the sweep has run.
    seconds
        Time that the sweep may take.

    Examples
    --------
    >>> plan_round([[[100.0], [10_000.0]]], elapsed_s=0.02, seconds=10.0)
    [8, 1]
    >>> plan_round([[[100.0], [10_000.0]]] * 5, elapsed_s=10.0, seconds=10.0)
    []
    """
    spent_s = [sum(times) / 1e6 for times in _by_size(rounds)]
    estimates = [_mean_of_shortest(times) for times in _by_size(rounds)]
    is_early = len(rounds) <= _MIN_ROUNDS
    noisy = [len(rounds) <= _FULL_ROUNDS or error > _MAX_NOISE for _, error in estimates]
    share_s = elapsed_s / max(1, sum(noisy))
    counts = [
        max(1, min(_MAX_REPETITIONS, int(_SIZE_S * 1e6 / us)))
        if is_early or (is_noisy and spent <= share_s)
        else 0
        for (us, _), spent, is_noisy in zip(estimates, spent_s, noisy, strict=True)
    ]
    needed_s = sum(us * count for (us, _), count in zip(estimates, counts, strict=True)) / 1e6
    ends = not any(counts) or elapsed_s + needed_s > seconds
    return [] if ends and not is_early else counts


def _by_size(rounds: Rounds) -> list[list[float]]:
    return [[us for times in size for us in times] for size in zip(*rounds, strict=True)]


def _mean_of_shortest(times: Sequence[float]) -> tuple[float, float]:
    """Return the mean of the shortest repetitions, and the relative standard error of this mean.

    The error assumes independent repetitions. As the error of a tail mean, it includes the
    variance of the shortest repetitions and the variance of the quantile that limits them. Both
    results are NaN without repetitions.
    """
    if not times:
        return math.nan, math.nan
    ordered = np.sort(np.asarray(times, float))
    count = max(1, int(_SHORTEST_SHARE * len(ordered)))
    shortest = ordered[:count]
    edge = ordered[min(count, len(ordered) - 1)]
    mean = float(shortest.mean())
    variance = float(shortest.var()) + (1 - _SHORTEST_SHARE) * (float(edge) - mean) ** 2
    return mean, math.sqrt(variance / count) / mean


def _disagreement(rounds: Rounds) -> float:
    """Return the relative difference between the halves of the rounds, as median over sizes."""
    half = len(rounds) // 2
    first, second = (
        np.array([_mean_of_shortest(times)[0] for times in _by_size(part)])
        for part in (rounds[:half], rounds[half:])
        if part
    )
    is_measured = np.isfinite(first + second)
    return (
        float(np.median(np.abs(first[is_measured] / second[is_measured] - 1)))
        if is_measured.any()
        else 0.0
    )


def _fitted(sizes: list[int], rounds: Rounds, n: int) -> FittedFabric:
    """Fit lines to the times of `SIZES_BYTES`, and compare them with the times of other sizes."""
    estimates = dict(zip(sizes, map(_mean_of_shortest, _by_size(rounds)), strict=True))
    fit_sizes = [size for size in sizes if size in SIZES_BYTES]
    held_out_sizes = [size for size in sizes if size not in SIZES_BYTES and size < fit_sizes[-1]]
    times, noise = zip(*[estimates[size] for size in fit_sizes], strict=True)
    held_out = [(size, estimates[size][0]) for size in held_out_sizes]
    fabric = fit(fit_sizes, times, n, held_out, noise)
    return replace(fabric, held_out_noise=tuple(estimates[size][1] for size in held_out_sizes))
