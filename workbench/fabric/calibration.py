"""Measures a fabric with the backend and the ranks that train over it."""

from __future__ import annotations

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
"""Runs the source of a measurement on all ranks; returns its values by rank.

The source has the variables `ring` (its `Backend`), `device`, `rank` and `world_size`, and those of
`workbench.rank.measurement.measure`, whatever cells have set.
It calls the function with the cell's output several times a second while the cell runs.
"""

Rates = np.ndarray[Any, np.dtype[np.float64]]

Rounds = list[list[list[float]]]
"""Microseconds of each repetition, by round and size."""

SIZES_BYTES = tuple(1 << power for power in range(12, 25))
"""4 KB to 16 MB; over a slow fabric only those that take up to `_LONG_S`."""
HELD_OUT_BYTES = tuple(3 << power for power in range(12, 24, 2))
"""Measured like the others, to learn how well the fit predicts sizes that it has not used."""

_ROUNDS = 8
"""After so many rounds, only sizes that are still noisy are measured."""
_LEAST_ROUNDS = 3
"""So many rounds measure all sizes in any case."""
_PRECISE = 0.01
"""A size is noisy while the relative standard error of its time exceeds this."""
_SIZE_S = 0.015
"""How long each round repeats one size, but no more than `_MAX_REPETITIONS` times."""
_MAX_REPETITIONS = 8
_LONG_S = 1 / 40
"""If an allreduce takes this share of all the time, larger ones are not measured."""
_LEAST_SIZES = 4
_LIMIT, _LEAST_LIMIT_S = 4.0, 180.0
_UNDISTURBED = 0.25
"""The share of the repetitions that counts, the shortest: others only ever make them longer."""

# All ranks decide by the means of their times, which are the same numbers on each.
_SWEEP = """
def _workbench_sweep(sizes, seconds):
    from workbench.fabric.calibration import plan_round
    on = device
    finish = torch.cuda.synchronize if on.type == "cuda" else lambda _: None
    def once(size):
        finish(on)
        ring.barrier()
        began = time.perf_counter()
        ring.allreduce(tensors[size], f"workbench.sweep.{{size}}")
        finish(on)
        return time.perf_counter() - began
    def means(values, count):
        padded = [*values, *[0.0] * (count - len(values))]
        sums = torch.tensor(padded, dtype=torch.float64, device=on)
        ring.allreduce(sums, f"workbench.sweep.means.{{count}}")
        return [total / world_size for total in sums.tolist()]
    began, tensors, warm = time.perf_counter(), {{}}, []
    for size in sizes:  # in ascending order, the better of two to warm up
        tensors[size] = torch.zeros(size // 4, dtype=torch.float32, device=on)
        took = min(means([once(size), once(size)], 2))
        if took > {long_s} * seconds:  # or only disturbed
            took = min(took, *means([once(size), once(size)], 2))
        warm.append([took * 1e6])
        if len(tensors) >= {least_sizes} and took > {long_s} * seconds:
            break
    rounds = [warm]
    (elapsed,) = means([time.perf_counter() - began], 1)
    while counts := plan_round(rounds, elapsed, seconds):
        if rank == 0:
            show(f"{{min(1.0, elapsed / seconds):.0%}}")
        own = [once(size) * 1e6 for size, count in zip(tensors, counts) for _ in range(count)]
        elapsed, *found = means([time.perf_counter() - began, *own], {most} * len(tensors) + 1)
        turn = iter(found)
        rounds.append([[next(turn) for _ in range(count)] for count in counts])
    return list(tensors), rounds
"""

# GB/s of each run of copies. Those of memory count the bytes read and written, as the STREAM
# benchmark does. A run repeats a copy, so that it takes milliseconds. On a GPU, events time it:
# one copy within its memory takes less time than to launch it.
_COPIES = """
def _workbench_copies():
    on = device
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
    def memory(where, size):
        source = torch.zeros(size // 4, dtype=torch.float32, device=where)
        return rates(torch.empty_like(source), source, 2)
    rates_by_kind = {{"host memory": memory("cpu", {host_bytes})}}
    if on.type == "cuda":
        most = torch.cuda.mem_get_info(on)[0] // 8
        rates_by_kind["GPU memory"] = memory(on, min({gpu_bytes}, most))
        size = min({pinned_bytes}, most) // 4
        gpu_tensor = torch.zeros(size, dtype=torch.float32, device=on)
        host_tensor = torch.zeros(size, dtype=torch.float32, device="cpu", pin_memory=True)
        rates_by_kind["PCIe"] = rates(gpu_tensor, host_tensor, 1)
        rates_by_kind["device to host"] = rates(host_tensor, gpu_tensor, 1)
    return rates_by_kind
"""
_RUN_S = 0.01
_RUNS = 9
_HOST_BYTES = 64 << 20
_PINNED_BYTES = 256 << 20
_GPU_BYTES = 1 << 30
_ALL = "(*_workbench_sweep({sizes}, {seconds}), _workbench_copies())"


def limit_s(seconds: float) -> float:
    """Return the seconds after which a measurement of about `seconds` is interrupted."""
    return _LEAST_LIMIT_S + _LIMIT * seconds


def measure(
    run: RunCell, n: int, seconds: float, show: Callable[[str], None] | None = None
) -> FittedFabric:
    """Sweep allreduces over all ranks, and fit lines to their times; also measure copies.

    One rank measures only copies: within the memory of its GPU and of its VM, and between the two.

    The time of an allreduce is the mean over ranks, as nccl-tests reports it, from the end of a
    barrier. The tensors are on each rank's `device`. All sizes are measured in turn in several
    rounds, so that a change of the fabric affects all of them; further rounds measure only those
    whose time is still uncertain. The time of a size is the mean of the shortest quarter of its
    repetitions, so that other processes disturb the result little. It is the same for sizes of
    the fit and for those that are held out.

    If the halves of the rounds differ, the result's `caveat` and a warning say so. If the fit is
    unreliable, `explain` does not use it for advice.

    Parameters
    ----------
    n
        The number of ranks.
    seconds
        No further round begins if it would end after this time. Over a slow fabric fewer sizes
        are measured.
    show
        Called with the output of the cell, instead of printing the progress.
    """
    copies = _COPIES.format(
        run_s=_RUN_S, runs=_RUNS, host_bytes=_HOST_BYTES, pinned_bytes=_PINNED_BYTES,
        gpu_bytes=_GPU_BYTES,
    )  # fmt: skip
    if n < 2:
        return _copies_only(run(copies + "_workbench_copies()", lambda _: None))
    sizes = sorted((*SIZES_BYTES, *HELD_OUT_BYTES))
    sweep = _SWEEP.format(most=_MAX_REPETITIONS, long_s=_LONG_S, least_sizes=_LEAST_SIZES)
    ends = _ALL.format(sizes=repr(sizes), seconds=repr(seconds))
    with ProgressLine("calibrating") as progress:
        values = run(sweep + copies + ends, progress.show if show is None else show)
    swept, rounds, _ = next(iter(values.values()))
    fabric = replace(
        _with_copies(
            _fitted(swept, rounds, n), {rank: one for rank, (_, _, one) in values.items()}
        ),
        disagreement=_disagreement(rounds),
    )
    if fabric.caveat:
        warnings.warn(fabric.caveat, UserWarning, stacklevel=4)
    return fabric


def _copies_only(values: Mapping[int, Mapping[str, Sequence[float]]]) -> FittedFabric:
    """Return what is measured on one rank, which has no collectives."""
    if not any("GPU memory" in rates for rates in values.values()):
        raise UsageError(
            "Cannot calibrate on 1 rank without a GPU: a collective takes at least 2. Start a "
            "cluster of more."
        )
    return _with_copies(ONE_RANK, values)


def _with_copies(
    fabric: FittedFabric, values: Mapping[int, Mapping[str, Sequence[float]]]
) -> FittedFabric:
    """Add the median rates of copies, and half of their range as a share of it, by rank."""
    medians, spreads = (
        {
            str(rank): {kind: of(np.asarray(rates)) for kind, rates in copies.items()}
            for rank, copies in values.items()
        }
        for of in (_median, _spread)
    )
    return replace(fabric, devices=medians, device_spreads=spreads)


def _median(rates: Rates) -> float:
    return float(np.median(rates))


def _spread(rates: Rates) -> float:
    return float(np.ptp(rates) / 2 / np.median(rates))


class ProgressLine:
    """Shows how far a cell is, in one line of standard output.

    Notebooks show standard error as if something was wrong.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown = ""

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if self._shown:
            end = "stopped" if failed else "done"
            self._write(f"\r{self._what}: {end}".ljust(len(self._shown)) + "\n")

    def show(self, output: str) -> None:
        """Show the last line of a cell's output, such as ``[rank 0] 35%``."""
        share = output.rstrip().rpartition(" ")[2]
        text = f"\r{self._what}: {share}"
        if share.endswith("%") and text != self._shown:
            self._shown = text
            self._write(text)

    @staticmethod
    def _write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def plan_round(rounds: Rounds, elapsed_s: float, seconds: float) -> list[int]:
    """Return how often the next round of a sweep repeats each size; nothing if the sweep ends.

    No size takes more than its share of the time that has passed, so that the large ones, which
    take long and vary little, leave most repetitions to the small ones.

    Parameters
    ----------
    rounds
        Times in microseconds of each repetition, by round and size. The first round has one each.
    elapsed_s, seconds
        How long the sweep has run, and how long it may take.
    """
    spent_s = [sum(times) / 1e6 for times in _by_size(rounds)]
    found = [_undisturbed(times) for times in _by_size(rounds)]
    early = len(rounds) <= _LEAST_ROUNDS
    noisy = [len(rounds) <= _ROUNDS or error > _PRECISE for _, error in found]
    share_s = elapsed_s / max(1, sum(noisy))
    counts = [
        max(1, min(_MAX_REPETITIONS, int(_SIZE_S * 1e6 / us)))
        if early or (more and spent <= share_s)
        else 0
        for (us, _), spent, more in zip(found, spent_s, noisy, strict=True)
    ]
    needed_s = sum(us * count for (us, _), count in zip(found, counts, strict=True)) / 1e6
    ends = not any(counts) or elapsed_s + needed_s > seconds
    return [] if ends and not early else counts


def _by_size(rounds: Rounds) -> list[list[float]]:
    return [[us for times in size for us in times] for size in zip(*rounds, strict=True)]


def _undisturbed(times: Sequence[float]) -> tuple[float, float]:
    """Return the mean of the shortest repetitions, and its relative standard error.

    The error is that of independent repetitions (of a tail mean: its variance, and that of the
    quantile which limits it). Both are NaN without repetitions.
    """
    if not times:
        return math.nan, math.nan
    ordered = np.sort(np.asarray(times, float))
    count = max(1, int(_UNDISTURBED * len(ordered)))
    shortest, edge = ordered[:count], ordered[min(count, len(ordered) - 1)]
    mean = float(shortest.mean())
    variance = float(shortest.var()) + (1 - _UNDISTURBED) * (float(edge) - mean) ** 2
    return mean, math.sqrt(variance / count) / mean


def _disagreement(rounds: Rounds) -> float:
    """Return by how much the halves of the rounds differ: the median over sizes."""
    half = len(rounds) // 2
    first, second = (
        np.array([_undisturbed(times)[0] for times in _by_size(part)])
        for part in (rounds[:half], rounds[half:])
        if part
    )
    both = np.isfinite(first + second)
    return float(np.median(np.abs(first[both] / second[both] - 1))) if both.any() else 0.0


def _fitted(sizes: list[int], rounds: Rounds, n: int) -> FittedFabric:
    found = dict(zip(sizes, map(_undisturbed, _by_size(rounds)), strict=True))
    used = [size for size in sizes if size in SIZES_BYTES]
    inside = [size for size in sizes if size not in SIZES_BYTES and size < used[-1]]
    times, noise = zip(*[found[size] for size in used], strict=True)
    fabric = fit(used, times, n, [(size, found[size][0]) for size in inside], noise)
    return replace(fabric, held_out_noise=tuple(found[size][1] for size in inside))
