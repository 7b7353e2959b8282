"""Measures a fabric with the backend and the ranks that train over it."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from workbench.errors import UsageError
from workbench.fabric.fit import FittedFabric, fit

RunCell = Callable[[str, Callable[[str], None]], Mapping[int, Any]]
"""Runs a cell on all ranks; returns its values by rank.

It calls the function with the cell's output several times a second while the cell runs.
"""

SIZES_BYTES = tuple(1 << power for power in range(12, 25))
"""4 KB to 16 MB; over a slow fabric only those that take up to `_LONG_S`."""
HELD_OUT_BYTES = tuple(3 << power for power in range(12, 24, 2))
"""Measured like the others, to learn how well the fit predicts sizes that it has not used."""

ROUNDS = 16
"""All sizes are measured in turn, this often if the time suffices."""
_MOST_ROUNDS = 64
_LEAST_ROUNDS = 2
_AGREE = 0.02
"""After `ROUNDS` rounds, further ones follow until their halves differ by less."""
_SIZE_S = 0.015
"""How long each round repeats one size, but no more than `_MOST_REPETITIONS` times."""
_MOST_REPETITIONS = 8
_MOST_SKIPPED = 4
"""A size that takes longer is measured in every second to fourth round only."""
_LONG_S = 1 / 40
"""If an allreduce takes this share of all the time, larger ones are not measured."""
_LEAST_SIZES = 4
_LIMIT, _LEAST_LIMIT_S = 4.0, 180.0
_UNDISTURBED = 0.1
"""The quantile of the repetitions that counts: other processes only ever make them longer."""

# The ranks must agree on how often they go on: `slowest` gives all of them the same number.
_SWEEP = """
def _workbench_sweep(sizes, seconds):
    import time, torch
    from workbench.fabric.calibration import disagreement
    from workbench.rank.session import backend
    ring, on = backend(), torch.device(device)
    slowest = lambda taken: ring.largest(taken, "workbench.sweep.slowest")
    finish = torch.cuda.synchronize if on.type == "cuda" else lambda _: None
    def once(size):
        finish(on)
        ring.barrier()
        began = time.perf_counter()
        ring.allreduce(tensors[size], f"workbench.sweep.{{size}}")
        finish(on)
        return time.perf_counter() - began
    began, tensors, repetitions, every = time.perf_counter(), {{}}, {{}}, {{}}
    for size in sizes:  # in ascending order, to warm up and to see how long each takes
        tensors[size] = torch.zeros(size // 4, device=on)
        took = slowest(min(once(size), once(size)))
        repetitions[size] = max(1, min({most}, int({size_s} / took)))
        every[size] = max(1, min({most_skipped}, int(took / {size_s})))
        if len(tensors) >= {least_sizes} and took > {long_s} * seconds:
            break
    rounds = []
    while len(rounds) < {most_rounds}:
        if len(rounds) >= {rounds} and slowest(disagreement(rounds)) < {agree}:
            break
        share = slowest((time.perf_counter() - began) / seconds)
        if len(rounds) >= {least_rounds} and share * (1 + 1 / len(rounds)) > 1:
            break
        if rank == 0:
            print(f"{{min(1.0, share):.0%}}")
        turn = len(rounds)
        rounds.append([[once(size) * 1e6 for _ in range(0 if turn % every[size] else count)]
                       for size, count in repetitions.items()])
    return list(repetitions), rounds
"""

# Copies of 64 MB: the bytes read and written for memory, as in the STREAM benchmark, and the
# bytes moved between host and device.
_COPIES = """
def _workbench_copies():
    import time, torch
    on = torch.device(device)
    finish = torch.cuda.synchronize if on.type == "cuda" else lambda _: None
    def rate(target, source, factor):
        best = float("inf")
        for _ in range(5):
            finish(on)
            began = time.perf_counter()
            target.copy_(source, non_blocking=True)
            finish(on)
            best = min(best, time.perf_counter() - began)
        return factor * source.numel() * 4 / best / 1e9
    host = torch.zeros(16 << 20, pin_memory=on.type == "cuda")
    found = {"host memory": rate(torch.empty_like(host), host, 2)}
    if on.type == "cuda":
        there = torch.zeros(16 << 20, device=on)
        found["GPU memory"] = rate(torch.empty_like(there), there, 2)
        found["PCIe"] = rate(there, host, 1)
        found["device to host"] = rate(host, there, 1)
    return found
(*_workbench_sweep({sizes}, {seconds}), _workbench_copies())
"""


def limit_s(seconds: float) -> float:
    """Return the seconds after which a measurement of about `seconds` is interrupted."""
    return _LEAST_LIMIT_S + _LIMIT * seconds


def measure(run: RunCell, n: int, seconds: float) -> FittedFabric:
    """Sweep allreduces over all ranks, and fit lines to the times of the slowest rank.

    The tensors are on each rank's `device`. All sizes are measured in turn, in several rounds
    until these agree, and the shortest tenth of each size's repetitions counts, so that other
    processes disturb the result little. If the halves of the rounds still differ, the result's
    `caveat` and a warning say so. If the fit is unreliable, `explain` does not use it for advice.

    Parameters
    ----------
    n
        The number of ranks.
    seconds
        No further round begins if it would end after this time. Over a slow fabric fewer sizes
        are measured.
    """
    if n < 2:
        raise UsageError(
            "Cannot calibrate on 1 rank: a collective takes at least 2. Start a cluster of more."
        )
    sizes = sorted((*SIZES_BYTES, *HELD_OUT_BYTES))
    sweep = _SWEEP.format(
        most=_MOST_REPETITIONS,
        most_skipped=_MOST_SKIPPED,
        size_s=_SIZE_S,
        long_s=_LONG_S,
        rounds=ROUNDS,
        most_rounds=_MOST_ROUNDS,
        agree=_AGREE,
        least_rounds=_LEAST_ROUNDS,
        least_sizes=_LEAST_SIZES,
    )
    ends = _COPIES.replace("{sizes}", repr(sizes)).replace("{seconds}", repr(seconds))
    with ProgressLine("calibrating") as progress:
        values = run(sweep + ends, progress.show)
    swept = next(iter(values.values()))[0]
    times = _slowest([rounds for _, rounds, _ in values.values()])
    fabric = replace(
        _fitted(swept, times, n),
        disagreement=disagreement(times),
        devices={str(rank): copies for rank, (_, _, copies) in values.items()},
    )
    if fabric.caveat:
        warnings.warn(fabric.caveat, UserWarning, stacklevel=4)
    return fabric


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


def _slowest(ranks: list[list[list[list[float]]]]) -> list[list[list[float]]]:
    """Return the times by round and size: of each repetition, that of the slowest rank."""
    return [
        [[max(times) for times in zip(*size, strict=True)] for size in zip(*rounds, strict=True)]
        for rounds in zip(*ranks, strict=True)
    ]


def _undisturbed(rounds: list[list[list[float]]]) -> list[float]:
    """Return the time of each size; NaN for one that none of these rounds has measured."""
    by_size = ([us for times in size for us in times] for size in zip(*rounds, strict=True))
    return [
        float(np.quantile(times, _UNDISTURBED, method="lower")) if times else math.nan
        for times in by_size
    ]


def disagreement(rounds: list[list[list[float]]]) -> float:
    """Return by how much the halves of the rounds differ: the median over sizes.

    `rounds` are the times of each repetition, by round and size.
    """
    half = len(rounds) // 2
    first, second = (np.array(_undisturbed(part)) for part in (rounds[:half], rounds[half:]))
    both = np.isfinite(first + second)
    return float(np.median(np.abs(first[both] / second[both] - 1))) if both.any() else 0.0


def _fitted(sizes: list[int], rounds: list[list[list[float]]], n: int) -> FittedFabric:
    found = dict(zip(sizes, _undisturbed(rounds), strict=True))
    used = [size for size in sizes if size in SIZES_BYTES]
    inside = [size for size in sizes if size not in SIZES_BYTES and size < used[-1]]
    return fit(used, [found[size] for size in used], n, [(size, found[size]) for size in inside])
