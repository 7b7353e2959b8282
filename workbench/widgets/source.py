"""What a live view needs of whatever holds the timings.

`LiveView` knows nothing of how timings arrive; it reads a `TimingSource`. All of
its methods are called from any thread, at most a dozen times a second, and answer at
once from memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from workbench.resources import Unknown
from workbench.timings.totals import CollectiveTotal

COLUMNS = (
    "iteration",
    "rank",
    "iteration_us",
    "data_us",
    "copy_us",
    "forward_us",
    "backward_us",
    "exposed_us",
    "optimizer_us",
    "other_us",
    "communication_us",
    "overlapped_us",
    "wait_us",
    "algbw_gbps",
    "busbw_gbps",
    "end_s",
    "first",
)
"""The columns of a `Window`, in order; times in microseconds, `end_s` in seconds
since the run's first iteration began, `first` is 1 in the first iteration of a cell,
which warms up: means leave it out."""

State = Literal["waiting", "running", "ended"]


@dataclass(frozen=True)
class RankPlace:
    """A rank and the VM that it runs on."""

    rank: int
    vm: str


@dataclass(frozen=True)
class Status:
    """What is going on.

    Attributes
    ----------
    run
        Counts the runs of this source; iterations begin anew in each. A view
        drops what it holds when it changes.
    state
        ``"waiting"`` before the first iteration, ``"running"``, ``"ended"``.
        A source may go from ``"ended"`` to the next run.
    message
        One line for people: what is waited for, how the run ended.
    ranks
        In rank order; they stay the same throughout a run.
    """

    run: int
    state: State
    message: str
    ranks: tuple[RankPlace, ...]


@dataclass(frozen=True)
class Summary:
    """The key figures of the newest iterations, each a number or `Unknown`.

    Attributes
    ----------
    iteration
        Number of the newest iteration.
    iterations_per_s, iteration_us, exposed_us, busbw_gbps
        Means over the newest iterations and the ranks; see `timings.Summary`.
    exposed_share
        `exposed_us` over `iteration_us`, 0 to 1.
    nominal_gbps
        What the link's rate allows, gigabits per second.
    calibrated_gbps
        The bus bandwidth that this fabric was measured to give at this run's sizes.
    calibrated_error
        How far that may be off, as a share: the worst of the calibration.
    slowest_rank, slowest_excess_us
        The rank that the others wait for, and by how much.
    dropped
        Records lost on their way, since the run began.
    notes
        What a reader must know of the figures, a sentence each.
    """

    iteration: float | Unknown
    iterations_per_s: float | Unknown
    iteration_us: float | Unknown
    exposed_us: float | Unknown
    exposed_share: float | Unknown
    busbw_gbps: float | Unknown
    nominal_gbps: float | Unknown
    calibrated_gbps: float | Unknown
    calibrated_error: float | Unknown
    slowest_rank: float | Unknown
    slowest_excess_us: float | Unknown
    dropped: float | Unknown
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Straggler:
    """A rank that the others waited for: `phase` is where it differs from them.

    The rank is -1 where all wait for a link, the phase ``"unknown"`` where none tells.

    Attributes
    ----------
    excess_us
        What the phase, or the link, takes longer.
    late_us
        For how much of that the others wait; 0 for a link.
    """

    rank: int
    phase: str
    excess_us: float
    late_us: float
    first_iteration: int
    last_iteration: int


@dataclass(frozen=True)
class Details:
    """What is said of a stretch of iterations.

    Attributes
    ----------
    first_iteration, last_iteration
        The stretch, both included; -1 where there is none.
    summary
        Its key figures.
    collectives
        The worst first, at most `MOST_COLLECTIVES`.
    names
        How many collectives there were in all.
    collectives_since
        The first iteration that single collectives are still held of.
    stragglers
        The newest first, at most `MOST_STRAGGLERS`.
    """

    first_iteration: int
    last_iteration: int
    summary: Summary
    collectives: tuple[CollectiveTotal, ...] | Unknown
    names: int
    collectives_since: int
    stragglers: tuple[Straggler, ...]


MOST_COLLECTIVES = 40
MOST_STRAGGLERS = 4


@dataclass(frozen=True)
class Window:
    """Rows of the current run.

    Attributes
    ----------
    cursor
        How many rows the run had received when this was read: what to hand to
        `TimingSource.since` next.
    data
        float32 of shape (len(COLUMNS), rows), C order, NaN where not known; a row
        per iteration and rank, ordered by iteration, then rank. A row that comes
        a second time replaces the first.
    """

    cursor: int
    data: NDArray[np.float32]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self.data.shape[1])


@dataclass(frozen=True)
class Reading:
    """What a source said at one moment."""

    status: Status
    summary: Summary
    window: Window
    details: Details

    @classmethod
    def take(cls, source: TimingSource, max_rows: int) -> Reading:
        """Read a source, with its newest rows, at most `max_rows`."""
        return cls(source.status(), source.summary(), source.window(max_rows), source.details())


class TimingSource(Protocol):
    """Timings that grow while ranks train."""

    def status(self) -> Status:
        """Say what is going on."""

    def summary(self) -> Summary:
        """Give the key figures of the newest iterations."""

    def window(self, max_rows: int) -> Window:
        """Give the newest rows of the run, at most `max_rows`, whole iterations."""

    def since(self, cursor: int) -> Window | None:
        """Give the rows received after `cursor`; None where they are not all held.

        None also where `cursor` is of an earlier run. The view then asks for a
        `window`.
        """

    def before(self, iteration: int, max_rows: int) -> Window:
        """Give the rows of the iterations before `iteration`, the nearest, at most `max_rows`."""

    def details(self, first: int | None = None, last: int | None = None) -> Details:
        """Say what the iterations `first` to `last` cost, both included; None: the newest.

        Asked for at most once a second, and when someone marks a stretch.
        """

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when a run begins or ends, or its status changes otherwise.

        It may be called for rows as well, from any thread, and returns at once; a
        view looks for rows by itself until the run has ended. Returns how to stop.
        """
