"""Measures what recording adds to an iteration, by pairs of runs of one cell."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workbench.errors import CellInterrupted, CellTimeout, UsageError
from workbench.ranks import as_int
from workbench.timings.timings import Timings
from workbench.wire.cell_cost import CellCost

LEAST_PAIRS = 3
"""With fewer, an interval says nothing."""
_LINE = 72
"""Characters of the progress line, which each later one overwrites."""
_COMPARED = (
    "Compared were runs with recording and runs without it, in random order. Both wait for "
    "collectives with pauses, also where the library's own wait polls without any, as after "
    "%timings off. So the difference is the cost of recording alone."
)
Values = npt.NDArray[np.float64]
Run = Callable[[float, bool], tuple[int, list[CellCost]]]
"""Runs the cell with a time limit in seconds, recorded or not; returns its number and costs."""


@dataclass(frozen=True)
class Added:
    """What recording adds to an iteration, in microseconds.

    Attributes
    ----------
    mean_us
        Mean of the differences of the pairs; negative if the runs with recording took less.
    low_us, high_us
        Its 95 % interval, by Student's t distribution.
    """

    mean_us: float
    low_us: float
    high_us: float

    def __str__(self) -> str:
        """Return the mean and the interval in milliseconds."""
        low, high = self.low_us / 1e3, self.high_us / 1e3
        return f"{self.mean_us / 1e3:+.3f} ms (95 % {low:+.3f} to {high:+.3f} ms)"


@dataclass(frozen=True, repr=False)
class Overhead:
    """What recording costs an iteration of a cell; means over ranks.

    Times per iteration are those of the whole cell, divided by the number of its iterations.
    What the cell does outside its iterations is the same with and without recording.

    Attributes
    ----------
    pairs
        How many pairs of runs were compared.
    iterations
        Number of iterations of one run.
    iteration_us
        Mean duration of an iteration without recording: of the recorded iterations, less `wall`.
    wall
        Of the time in which the cell's code runs.
    cpu
        Of the CPU time of all threads of a rank's process, with the sending of its records.
    main_thread
        Of the CPU time of the thread that runs the cell.
    cpu_us, main_thread_us
        Those CPU times per iteration, with and without recording.
    hooked
        Whether models kept a communication hook of DDP in the runs without recording.
    """

    pairs: int
    iterations: int
    iteration_us: float
    wall: Added
    cpu: Added
    main_thread: Added
    cpu_us: tuple[float, float]
    main_thread_us: tuple[float, float]
    hooked: bool

    @property
    def title(self) -> str:
        """What recording adds to an iteration, in a sentence."""
        mean, low, high = (
            100 * value / self.iteration_us
            for value in (self.wall.mean_us, self.wall.low_us, self.wall.high_us)
        )
        iteration = f"an iteration of {self.iteration_us / 1e3:.1f} ms, {self.pairs} pairs"
        return f"Recording adds {mean:.1f} % (95 % {low:.1f} to {high:.1f} %) to {iteration}."

    @property
    def notes(self) -> list[str]:
        """How the figures are to be understood, in sentences."""
        lines = [
            _COMPARED,
            f"Each time is that of the whole cell, divided by its {self.iterations:,} iterations.",
        ]
        if self.wall.low_us <= 0 <= self.wall.high_us:
            lines.append(
                "The interval contains 0: an effect cannot be distinguished from chance. More "
                "pairs, or a longer cell, give a smaller interval."
            )
        if self.hooked:
            lines.append(
                "Models that were wrapped by DistributedDataParallel while recording was on keep a "
                "communication hook, whose cost is in both. Wrap them in this cell to avoid that."
            )
        return lines

    def __repr__(self) -> str:
        cpu = _cpu_line("CPU time of a rank per iteration", self.cpu_us, self.cpu)
        main = _cpu_line("Of this, its main thread", self.main_thread_us, self.main_thread)
        return "\n".join([self.title, cpu, main, *self.notes])


def _cpu_line(what: str, both: tuple[float, float], added: Added) -> str:
    on, off = (value / 1e3 for value in both)
    return f"{what}: {on:.3f} ms with recording, {off:.3f} ms without, {added}."


class Measurement:
    """Runs a cell with and without recording.

    Parameters
    ----------
    timings
        Receives the records of the runs.
    """

    def __init__(self, run: Run, timings: Timings) -> None:
        self._run_cell = run
        self._timings = timings
        self._numbers: list[int] = []
        """The cells that were recorded."""
        self._iterations = 0

    def take(self, pairs: int, timeout_s: float) -> Overhead:
        """Run the pairs, and return what was measured; see `Cluster.measure_overhead`."""
        count = as_int(pairs)
        if count is None or count < LEAST_PAIRS:
            raise UsageError(f"pairs={pairs!r}: must be an integer of {LEAST_PAIRS} or more.")
        deadline = time.monotonic() + timeout_s
        _say(
            f"The cell runs up to {2 * count + 1} times: its model continues to train, and its "
            "files are written again.\nInterrupt to stop.\n"
        )
        random = np.random.default_rng()
        found: list[dict[bool, list[CellCost]]] = []
        try:
            began = time.monotonic()
            _progress("a first run, which is not counted")
            self._run(deadline, record=True)
            pair_s = 2 * (time.monotonic() - began)
            _check_time(pair_s, deadline, timeout_s)
            for number in range(1, count + 1):
                left_s = deadline - time.monotonic()
                if left_s < pair_s and number > LEAST_PAIRS:
                    break
                rest_s = min((count - number + 1) * pair_s, left_s)
                _progress(f"pair {number} of {count}, about {rest_s:.0f} s left")
                began = time.monotonic()
                order = random.permutation([True, False]).tolist()
                try:
                    found.append({on: self._run(deadline, record=on) for on in order})
                except CellTimeout:
                    if len(found) < LEAST_PAIRS:
                        raise
                    break
                pair_s = max(pair_s, time.monotonic() - began)
        except KeyboardInterrupt:  # between two runs
            raise CellInterrupted("the measurement was interrupted; variables are kept") from None
        finally:
            _progress("")
        return self._evaluate(found)

    def _run(self, deadline: float, *, record: bool) -> list[CellCost]:
        """Run the cell, and return its cost by rank."""
        number, costs = self._run_cell(max(0.1, deadline - time.monotonic()), record)
        if record:
            self._numbers.append(number)
            self._count(max(cost.iterations or 0 for cost in costs))
        return costs

    def _count(self, iterations: int) -> None:
        """Check that each run has the same number of iterations."""
        if not iterations:
            raise no_iterations()
        if iterations != (self._iterations or iterations):
            raise UsageError(
                f"Cannot measure the overhead: one run of the cell had {self._iterations:,} "
                f"iterations, another {iterations:,}. Measure a cell that always has the same "
                "number."
            )
        self._iterations = iterations

    def _evaluate(self, found: list[dict[bool, list[CellCost]]]) -> Overhead:
        def each(name: str, *, on: bool) -> Values:
            """Return a time per iteration in microseconds, by pair."""
            times = [np.mean([getattr(cost, name) for cost in pair[on]]) for pair in found]
            return np.array(times) / self._iterations / 1e3

        def added(name: str) -> Added:
            return difference(each(name, on=True) - each(name, on=False))

        def both(name: str) -> tuple[float, float]:
            return float(each(name, on=True).mean()), float(each(name, on=False).mean())

        rows, wall = self._timings.rows(), added("wall_ns")
        recorded = rows["iteration_ns"][np.isin(rows["cell"], self._numbers[1:])]
        return Overhead(
            len(found),
            self._iterations,
            float(recorded.mean()) / 1e3 - wall.mean_us,
            wall,
            added("cpu_ns"),
            added("thread_ns"),
            both("cpu_ns"),
            both("thread_ns"),
            any(cost.hooked for pair in found for cost in pair[False]),
        )


def difference(values: Values) -> Added:
    """Return the mean of the differences of pairs, and its 95 % interval."""
    error = float(values.std(ddof=1)) / math.sqrt(len(values)) * quantile(len(values) - 1)
    mean = float(values.mean())
    return Added(mean, mean - error, mean + error)


def quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t distribution, for 2 degrees of freedom or more."""
    t = np.linspace(0, 10, 100_001)
    density = (1 + t**2 / freedom) ** (-(freedom + 1) / 2)
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    density *= math.exp(scale) / math.sqrt(freedom * math.pi)
    share = np.cumsum((density[1:] + density[:-1]) / 2) * (t[1] - t[0])
    return float(np.interp(0.475, share, t[1:]))


def _check_time(pair_s: float, deadline: float, timeout_s: float) -> None:
    least_s = LEAST_PAIRS * pair_s
    if time.monotonic() + least_s > deadline:
        raise UsageError(
            f"timeout={timeout_s:g}: too short, since {LEAST_PAIRS} pairs of runs of this cell "
            f"take about {least_s:.0f} s. Allow more time, or measure a cell with fewer iterations."
        )


def no_iterations() -> UsageError:
    """Return the error of a cell without iterations."""
    return UsageError(
        "Cannot measure the overhead: the cell has no iterations (no optimizer.step() ran). Run "
        "a training with %%distributed, or give its source to cluster.measure_overhead()."
    )


def _progress(text: str) -> None:
    """Overwrite the progress line; an empty text clears it."""
    _say(f"\r{f'Measuring: {text}' if text else '':{_LINE}}\r")


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
