"""Measures a fabric with the backend and the ranks that train over it."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial

from workbench.errors import UsageError
from workbench.fabric.fit import FittedFabric, fit

Run = Callable[[str, float, Callable[[], None]], dict[int, list[float]]]
"""Runs a cell on all ranks with a time limit in seconds; returns its values by rank.

It calls the function several times a second while the cell runs, but not before.
"""

SIZES_BYTES = tuple(1 << power for power in range(12, 26, 2))
"""4 KB to 16 MB; over a slow fabric the first allreduce above `_LONG_S` is the last."""

REPETITIONS = 20
"""For each size; fewer if they would take longer than `_SIZE_S` together."""

_SIZE_S = 3.0
_LONG_S = 0.3
"""If an allreduce takes this long, only bandwidth decides its time: larger ones are not needed."""

_LEAST_REPETITIONS = 3
_LEAST_SIZES = 2
"""The least number of sizes to which a line can be fitted."""

_NOTICE_S = 5.0
_NOTICE = "calibrating: this fabric is slow or busy; it takes up to a minute\n"
"""Printed once if a calibration takes longer than that, without the cells before it."""

_SWEEPS = 3
"""The most sweeps, until a line fits one of them."""

_SWEEP = """
def _workbench_sweep(sizes, repetitions):
    import time, torch
    from workbench.rank.session import backend
    ring = backend()
    def slowest(taken):
        return ring.largest(taken, "workbench.sweep.slowest")
    on = torch.device(device)
    finish = torch.cuda.synchronize if on.type == "cuda" else lambda _: None
    times = []
    for size in sizes:
        tensor = torch.zeros(size // 4, device=on)
        taken, turns = [], repetitions + 2
        while len(taken) < turns:
            finish(on)
            ring.barrier()
            began = time.perf_counter()
            ring.allreduce(tensor, f"workbench.sweep.{{size}}")
            finish(on)
            taken.append(time.perf_counter() - began)
            if len(taken) == 2:  # the ranks must agree on how often they go on
                fit = int({size_s} / slowest(taken[1]))
                turns = 2 + min(repetitions, max({least}, fit))
        measured = sorted(taken[2:])
        times.append(measured[len(measured) // 2] * 1e6)
        if len(times) >= {least_sizes} and slowest(times[-1] / 1e6) > {long_s}:
            break
    return times
_workbench_sweep({sizes}, {repetitions})
"""


def measure(run: Run, n: int, timeout_s: float) -> FittedFabric:
    """Sweep allreduces over all ranks, and fit a line to the medians of the slowest rank.

    The tensors are on each rank's `device`. If other processes disturb the measurement,
    so that no line fits it, the sweep is repeated, and the sweep with the best fit is kept.
    If that is unreliable too, a warning says so, and `explain` does not use it for advice.
    Over a slow fabric fewer repetitions and sizes are measured, so that a sweep takes seconds.

    Parameters
    ----------
    n
        The number of ranks.
    timeout_s
        Seconds after which the ranks are interrupted.
    """
    if n < 2:
        raise UsageError(
            "Cannot calibrate on 1 rank: a collective takes at least 2. Start a cluster of more."
        )
    ends = time.monotonic() + timeout_s
    sweep = partial(_sweep, run, n, _notice())
    fabric = sweep(timeout_s)
    for _ in range(_SWEEPS - 1):
        left_s = ends - time.monotonic()
        if fabric.reliable or left_s < timeout_s / 2:
            break
        fabric = min(fabric, sweep(left_s), key=lambda one: one.error)
    if not fabric.reliable:
        warnings.warn(fabric.caveat, UserWarning, stacklevel=3)
    return fabric


def _notice() -> Callable[[], None]:
    """Return a function that prints the notice, once, when it has been called for some seconds."""
    due = math.nan

    def poll() -> None:
        nonlocal due
        now = time.monotonic()
        if math.isnan(due):
            due = now + _NOTICE_S
        elif now >= due:
            due = math.inf
            sys.stderr.write(_NOTICE)

    return poll


def _sweep(run: Run, n: int, poll: Callable[[], None], timeout_s: float) -> FittedFabric:
    source = _SWEEP.format(
        sizes=SIZES_BYTES,
        repetitions=REPETITIONS,
        size_s=_SIZE_S,
        long_s=_LONG_S,
        least=_LEAST_REPETITIONS,
        least_sizes=_LEAST_SIZES,
    )
    slowest = [max(times) for times in zip(*run(source, timeout_s, poll).values(), strict=True)]
    return fit(list(SIZES_BYTES[: len(slowest)]), slowest, n)
