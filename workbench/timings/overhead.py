"""Measures how much time recording adds to an iteration, by comparing pairs of runs of a cell."""

from __future__ import annotations

import logging
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

_log = logging.getLogger(__name__)

MIN_PAIRS = 3
"""Minimum number of pairs; fewer give an interval that is too wide to be useful."""
_LINE_WIDTH = 72
"""Width of the progress line in characters, so that each line overwrites the line before it."""
_COMPARED = (
    "Compared were runs with recording and runs without it, in random order. Both wait for "
    "collectives with pauses, also where the library's own wait polls without any, as after "
    "%timings off. So the difference is the cost of recording alone."
)
Values = npt.NDArray[np.float64]
Run = Callable[[float, bool], tuple[int, list[CellCost]]]
"""Runs the cell with a time limit in seconds and with recording on or off.

Returns the number of the cell, and its costs by rank.
"""


@dataclass(frozen=True)
class Added:
    """How much time recording adds to an iteration, in microseconds.

    Attributes
    ----------
    mean_us
        Mean of the differences of the pairs; negative if the runs with recording took less time.
    low_us, high_us
        The 95 % interval of the mean, by Student's t distribution.

    Examples
    --------
    >>> print(Added(mean_us=120.0, low_us=-30.0, high_us=270.0))
    +0.120 ms (95 % -0.030 to +0.270 ms)
    """

    mean_us: float
    low_us: float
    high_us: float

    def __str__(self) -> str:
        """Return the mean and the interval in milliseconds."""
        low = self.low_us / 1e3
        high = self.high_us / 1e3
        return f"{self.mean_us / 1e3:+.3f} ms (95 % {low:+.3f} to {high:+.3f} ms)"


@dataclass(frozen=True, repr=False)
class Overhead:
    """The cost of recording per iteration of a cell; means over ranks.

    Times per iteration are times of the whole cell, divided by the number of its iterations.
    The work of the cell outside its iterations is the same with and without recording.

    Attributes
    ----------
    pairs
        Number of pairs of runs that were compared.
    iterations
        Number of iterations of one run.
    iteration_us
        Mean duration of an iteration without recording: the mean of the recorded iterations, less
        `wall`.
    wall
        Time that recording adds to the run time of the cell's code.
    cpu
        Time that recording adds to the CPU time of all threads of a rank's process, including the
        sending of records.
    main_thread
        Time that recording adds to the CPU time of the thread that runs the cell.
    cpu_us, main_thread_us
        These CPU times per iteration, with and without recording.
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
        """A sentence on how much time recording adds to an iteration."""
        mean, low, high = (
            100 * value / self.iteration_us
            for value in (self.wall.mean_us, self.wall.low_us, self.wall.high_us)
        )
        iteration = f"an iteration of {self.iteration_us / 1e3:.1f} ms, {self.pairs} pairs"
        return f"Recording adds {mean:.1f} % (95 % {low:.1f} to {high:.1f} %) to {iteration}."

    @property
    def notes(self) -> list[str]:
        """Sentences that explain the figures."""
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


def _cpu_line(label: str, both: tuple[float, float], added: Added) -> str:
    on, off = (value / 1e3 for value in both)
    return f"{label}: {on:.3f} ms with recording, {off:.3f} ms without, {added}."


class Measurement:
    """Runs a cell with and without recording.

    Parameters
    ----------
    run
        Runs the cell once.
    timings
        Receives the records of the runs.
    """

    def __init__(self, run: Run, timings: Timings) -> None:
        self._run_cell = run
        self._timings = timings
        self._numbers: list[int] = []
        """The numbers of the cells that were recorded."""
        self._iterations = 0

    def take(self, pairs: int, timeout_s: float) -> Overhead:
        """Run the pairs, and return the overhead; see `Cluster.measure_overhead`."""
        count = as_int(pairs)
        if count is None or count < MIN_PAIRS:
            raise UsageError(f"pairs={pairs!r}: must be an integer of {MIN_PAIRS} or more.")
        deadline = time.monotonic() + timeout_s
        _write(
            f"The cell runs up to {2 * count + 1} times: its model continues to train, and its "
            "files are written again.\nInterrupt to stop.\n"
        )
        random = np.random.default_rng()
        measured: list[dict[bool, list[CellCost]]] = []
        try:
            began = time.monotonic()
            _progress("a first run, which is not counted")
            self._run(deadline, record=True)
            pair_s = 2 * (time.monotonic() - began)
            _check_time(pair_s, deadline, timeout_s)
            for number in range(1, count + 1):
                left_s = deadline - time.monotonic()
                if left_s < pair_s and number > MIN_PAIRS:
                    _log.info("the time is up after %d of %d pairs", len(measured), count)
                    break
                rest_s = min((count - number + 1) * pair_s, left_s)
                _progress(f"pair {number} of {count}, about {rest_s:.0f} s left")
                began = time.monotonic()
                order = random.permutation([True, False]).tolist()
                try:
                    measured.append({on: self._run(deadline, record=on) for on in order})
                except CellTimeout:
                    if len(measured) < MIN_PAIRS:
                        raise
                    _log.info("a run timed out after %d of %d pairs", len(measured), count)
                    break
                pair_s = max(pair_s, time.monotonic() - began)
        except KeyboardInterrupt:  # between two runs
            raise CellInterrupted("the measurement was interrupted; variables are kept") from None
        finally:
            _progress("")
        return self._evaluate(measured)

    def _run(self, deadline: float, *, record: bool) -> list[CellCost]:
        """Run the cell, and return its cost by rank."""
        number, costs = self._run_cell(max(0.1, deadline - time.monotonic()), record)
        if record:
            self._numbers.append(number)
            self._check_iterations(max(cost.iterations or 0 for cost in costs))
        return costs

    def _check_iterations(self, iterations: int) -> None:
        """Raise `UsageError` unless each run has the same number of iterations, at least one."""
        if not iterations:
            raise no_iterations()
        if iterations != (self._iterations or iterations):
            raise UsageError(
                f"Cannot measure the overhead: one run of the cell had {self._iterations:,} "
                f"iterations, another {iterations:,}. Measure a cell that always has the same "
                "number."
            )
        self._iterations = iterations

    def _evaluate(self, measured: list[dict[bool, list[CellCost]]]) -> Overhead:
        def each(name: str, *, on: bool) -> Values:
            """Return a time per iteration in microseconds, by pair."""
            times = [np.mean([getattr(cost, name) for cost in pair[on]]) for pair in measured]
            return np.array(times) / self._iterations / 1e3

        def added(name: str) -> Added:
            return difference(each(name, on=True) - each(name, on=False))

        def both(name: str) -> tuple[float, float]:
            return float(each(name, on=True).mean()), float(each(name, on=False).mean())

        rows = self._timings.rows()
        wall = added("wall_ns")
        recorded = rows["iteration_ns"][np.isin(rows["cell"], self._numbers[1:])]
        return Overhead(
            len(measured),
            self._iterations,
            float(recorded.mean()) / 1e3 - wall.mean_us,
            wall,
            added("cpu_ns"),
            added("thread_ns"),
            both("cpu_ns"),
            both("thread_ns"),
            any(cost.hooked for pair in measured for cost in pair[False]),
        )


def difference(values: Values) -> Added:
    """Return the mean of the differences of pairs, and its 95 % interval.

    Examples
    --------
    >>> added = difference(np.array([100.0, 110.0, 120.0]))
    >>> round(added.mean_us), round(added.low_us), round(added.high_us)
    (110, 85, 135)
    """
    error = float(values.std(ddof=1)) / math.sqrt(len(values)) * quantile(len(values) - 1)
    mean = float(values.mean())
    return Added(mean, mean - error, mean + error)


def quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t distribution, for 2 degrees of freedom or more.

    Examples
    --------
    >>> round(quantile(9), 2)
    2.26
    """
    t = np.linspace(0, 10, 100_001)
    density = (1 + t**2 / freedom) ** (-(freedom + 1) / 2)
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    density *= math.exp(scale) / math.sqrt(freedom * math.pi)
    share = np.cumsum((density[1:] + density[:-1]) / 2) * (t[1] - t[0])
    return float(np.interp(0.475, share, t[1:]))


def _check_time(pair_s: float, deadline: float, timeout_s: float) -> None:
    least_s = MIN_PAIRS * pair_s
    if time.monotonic() + least_s > deadline:
        raise UsageError(
            f"timeout={timeout_s:g}: too short, since {MIN_PAIRS} pairs of runs of this cell "
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
    _write(f"\r{f'Measuring: {text}' if text else '':{_LINE_WIDTH}}\r")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
