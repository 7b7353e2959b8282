"""The interface between a live view and the timings that it shows.

`LiveView` reads a `TimingSource` and does not depend on how timings arrive. All methods
are called from any thread, at most a dozen times a second, and all but `explain` return
immediately from memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from workbench.resources import Unknown
from workbench.timings.totals import CollectiveTotal
from workbench.timings.verdict import Verdict
from workbench.widgets.run_files import RunFile

if TYPE_CHECKING:
    from workbench.widgets.earlier_runs import EarlierRun

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
    "queued_us",
    "transfer_us",
    "algbw_gbps",
    "busbw_gbps",
    "end_s",
    "left_out",
    "samples_per_s",
    "logged_0",
    "logged_1",
)
"""The columns of a `RowWindow`, in order. Times are in microseconds; `end_s` is in seconds
since the start of the run's first iteration. `logged_0` and `logged_1` are the first two values
that cells log (`Status.logged`): NaN without a value, infinite if the value was not finite.
`left_out` is the reason why means leave the iteration out (`timings.figures.untypical`); 0 in
typical iterations."""

State = Literal["waiting", "running", "ended"]

NOT_REPORTED = Unknown("no rank has reported how its collectives are carried")


@dataclass(frozen=True)
class RankPlace:
    """A rank and its VM."""

    rank: int
    vm: str


@dataclass(frozen=True)
class Status:
    """The state of a run.

    Attributes
    ----------
    run
        Number of the run in this source. Iterations start at 0 in each run, and a view
        discards its rows when the run changes.
    state
        ``"waiting"`` before the first iteration, ``"running"``, ``"ended"``.
        A source may go from ``"ended"`` to the next run.
    message
        One line for the user: what the view waits for, or how the run ended.
    ranks
        In rank order; they do not change during a run.
    unrecorded
        A line about cells that are not recorded, also part of `message`; empty if all are
        recorded.
    verdict
        The verdict on the cell of the newest iterations, after its end; None if not yet known.
    profile
        A line about the latest profile of the ranks; empty if none was requested.
    logged
        The names of the first two values that cells log with their iterations.
    profile_file
        The trace of the latest profile; None without one, or if the server does not send it.
    """

    run: int
    state: State
    message: str
    ranks: tuple[RankPlace, ...]
    unrecorded: str = ""
    verdict: Verdict | None = None
    profile: str = ""
    logged: tuple[str, ...] = ()
    profile_file: RunFile | None = None


@dataclass(frozen=True)
class KeyFigures:
    """The key figures of the newest iterations, each a number or `Unknown`.

    Attributes
    ----------
    iteration
        Number of the newest iteration.
    first_iteration, last_iteration
        Numbers of the first and the last iteration that the figures cover.
    iterations_per_s, iteration_us, exposed_us, busbw_gbps
        Means over the newest iterations and the ranks; see `timings.Summary`.
    exposed_share
        `exposed_us` over `iteration_us`, 0 to 1.
    waiting_us, queued_us, transfer_us
        The parts of `exposed_us`; see `timings.Summary`.
    nominal_gbps
        The rate of the link, in gigabits per second.
    calibrated_gbps
        The bus bandwidth predicted for this run's sizes by the calibration of this fabric.
    calibrated_error
        The relative error that nine of ten measured sizes of the calibration do not exceed.
    slowest_rank, slowest_excess_us
        The straggler, and how long the other ranks wait for it.
    dropped
        Records lost in transit since the run began.
    notes
        Caveats of the figures, one sentence each.
    progress
        Samples per second, passes over the data, and what communication has cost so far.
    transport
        The libraries that carry the collectives of the ranks, and their networks.
    """

    iteration: float | Unknown
    iterations_per_s: float | Unknown
    iteration_us: float | Unknown
    exposed_us: float | Unknown
    exposed_share: float | Unknown
    waiting_us: float | Unknown
    queued_us: float | Unknown
    transfer_us: float | Unknown
    busbw_gbps: float | Unknown
    nominal_gbps: float | Unknown
    calibrated_gbps: float | Unknown
    calibrated_error: float | Unknown
    slowest_rank: float | Unknown
    slowest_excess_us: float | Unknown
    dropped: float | Unknown
    notes: tuple[str, ...] = ()
    transport: str | Unknown = NOT_REPORTED
    progress: str | Unknown = NOT_REPORTED
    first_iteration: float | Unknown = NOT_REPORTED
    last_iteration: float | Unknown = NOT_REPORTED


@dataclass(frozen=True)
class StragglerEntry:
    """A straggler: a rank that the others waited for, and the `phase` that differs.

    The rank is -1 if all ranks wait for a link. The phase is ``"unknown"`` if no phase differs.

    Attributes
    ----------
    excess_us
        Additional time of the phase, or of the link.
    late_us
        How long the others wait because of it; 0 for a link.
    """

    rank: int
    phase: str
    excess_us: float
    late_us: float
    first_iteration: int
    last_iteration: int


@dataclass(frozen=True)
class StageEntry:
    """A stage of a pipeline: means over all iterations except the first of a cell.

    Attributes
    ----------
    group
        The pipeline's group of ranks, or its ranks.
    stage, rank
        The position of the stage in the pipeline, from 0, and the rank that runs the stage.
    idle_us, idle_share
        How long the stage waits for messages, and this time as a share of the iteration.
    ideal_share
        The share of idle time if all stages were equally fast.
    """

    group: str
    stage: int
    rank: int
    idle_us: float
    idle_share: float
    ideal_share: float | Unknown


@dataclass(frozen=True)
class Details:
    """The cost of a range of iterations.

    Attributes
    ----------
    first_iteration, last_iteration
        The range, both included; -1 if it is empty.
    summary
        The key figures of the range.
    collectives
        The most expensive first, at most `MAX_COLLECTIVES`.
    names
        Number of collectives in total.
    collectives_since
        The first iteration for which single collectives are still stored.
    stragglers
        The newest first, at most `MAX_STRAGGLERS`.
    stages
        The stages of pipelines; empty if no rank waits for messages.
    """

    first_iteration: int
    last_iteration: int
    summary: KeyFigures
    collectives: tuple[CollectiveTotal, ...] | Unknown
    names: int
    collectives_since: int
    stragglers: tuple[StragglerEntry, ...]
    stages: tuple[StageEntry, ...] | Unknown = ()


MAX_COLLECTIVES = 40
MAX_STRAGGLERS = 4


@dataclass(frozen=True)
class RowWindow:
    """Rows of the current run.

    Attributes
    ----------
    cursor
        How many rows the run had received when the window was read; the argument of the next
        `TimingSource.since`.
    data
        float32 of shape (len(COLUMNS), rows), C order, NaN where unknown; a row
        per iteration and rank, ordered by iteration, then rank. A row that is
        sent again replaces the earlier one.
    """

    cursor: int
    data: NDArray[np.float32]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self.data.shape[1])


@dataclass(frozen=True)
class TimingsReading:
    """The state of a source at one moment."""

    status: Status
    summary: KeyFigures
    window: RowWindow
    details: Details

    @classmethod
    def take(cls, source: TimingSource, max_rows: int) -> TimingsReading:
        """Read a source with at most `max_rows` of its newest rows."""
        return cls(source.status(), source.summary(), source.window(max_rows), source.details())


class TimingSource(Protocol):
    """Timings that grow while ranks train."""

    def status(self) -> Status:
        """Return the state of the current run."""

    def summary(self) -> KeyFigures:
        """Return the key figures of the newest iterations."""

    def window(self, max_rows: int) -> RowWindow:
        """Return the newest rows of the run, at most `max_rows`, of complete iterations."""

    def since(self, cursor: int) -> RowWindow | None:
        """Return the rows received after `cursor`; None if some are no longer stored.

        Also None if `cursor` is from an earlier run. The view then reads a `window`.
        """

    def before(self, iteration: int, max_rows: int) -> RowWindow:
        """Return at most `max_rows` rows of the iterations nearest before `iteration`."""

    def details(self, first: int | None = None, last: int | None = None) -> Details:
        """Return the cost of the iterations `first` to `last`, both included.

        By default, the range ends with the newest iteration.

        Called at most once a second, and when the user selects a range.
        """

    def explain(self) -> Verdict | Unknown:
        """Return what slows down the newest iterations of the last cell, or why it is unknown.

        Called when the user asks for it; it may take some tenths of a second.
        """

    def profile(self, seconds: float) -> str:
        """Profile the ranks for some seconds; return why this is impossible, or an empty text."""

    def earlier_runs(self) -> tuple[str, ...]:
        """Return the names of stored runs to compare with, the newest first."""

    def earlier_run(self, name: str) -> EarlierRun | Unknown:
        """Return the iteration times of a stored run, or why they are unknown.

        Called when the user chooses the run; it may take some tenths of a second.
        """

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when a run begins or ends, or its status changes; return an unsubscriber.

        The source may also call `callback` for new rows, from any thread. The callback returns
        immediately. A view also polls for rows until the run has ended.
        """
