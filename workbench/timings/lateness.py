"""Computes which ranks waited: when each rank submitted the last collective of an iteration.

A collective ends on all ranks at the same time, after the last rank has submitted it. If the last
collective of a rank took longer than it took on the last rank, the rank waited for the difference.
This comparison needs no clocks, but a busy rank sees the end too late. So the waiting of a rank is
limited to the time during which its training was stopped. If the clocks are known and the ranks'
submissions are further apart than the clocks' uncertainty, the clocks are used.

A rank may also wait earlier in the iteration: for an averaged loss, at a barrier, in the step of
another optimizer. All ranks stop there equally often, and the last rank hardly waits. So the
waiting of a rank is the time that it was stopped beyond the shortest stop among the ranks. This
estimate is too low if several ranks are late in turn in one iteration.

The rest of the time that training was stopped is transfer or queueing. After the last
submission of the last rank, all ranks wait for the same transfers. The last rank has stopped only
for these transfers. So the shortest transfer time of any rank applies to all ranks that have
stopped. A rank that continues to compute stops for less. The remainder is queueing: negotiation,
the backend's cycles, and copies into and out of buffers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from workbench.timings.store import Rows, has_flag, peers_of
from workbench.wire import Flag

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Lateness:
    """Lateness in the iterations that all ranks of a ring have reported.

    Arrays have a row per iteration and a column per rank.

    Attributes
    ----------
    rows
        The rows of the iterations.
    places
        The index of each of these rows among the rows that `lateness` received.
    late_us
        Delay of the rank's last submission after the first rank: 0 or more.
    waited_us
        How long the rank's training was stopped because of the last rank. This is how much later
        the last rank submitted its gradients, limited to the time that the training was stopped.
        If all ranks had been as early as this rank, its training would have been stopped for this
        much less time.
    transfer_us
        How long the rank was stopped for transfers after `waited_us`; NaN in iterations with
        unknown transfers.
    uncertainty_us
        Uncertainty of the difference of two ranks, per iteration; NaN if clocks were not used.
    service_us
        Upper bound of the last collective's duration after all ranks submitted it, per iteration.
    """

    rows: Rows
    places: npt.NDArray[np.intp]
    late_us: Matrix
    waited_us: Matrix
    transfer_us: Matrix
    uncertainty_us: npt.NDArray[np.float64]
    service_us: npt.NDArray[np.float64]

    @property
    def iterations(self) -> npt.NDArray[np.int64]:
        """The numbers of the iterations."""
        return np.asarray(self.rows["iteration"][:, 0])

    @property
    def ranks(self) -> npt.NDArray[np.int64]:
        """The ring's ranks."""
        return np.asarray(self.rows["rank"][0])


def behind(values: Matrix) -> Matrix:
    """Return the difference of each value from the median of the other values of its row.

    Examples
    --------
    >>> behind(np.array([[1.0, 2.0, 9.0]])).tolist()
    [[-4.5, -3.0, 7.5]]
    """
    n = values.shape[1]
    order = np.argsort(values, axis=1)
    position = np.argsort(order, axis=1)
    ordered = np.take_along_axis(values, order, axis=1)
    # the median is of the other columns, so the values after the own position move up by one
    low, high = (
        np.take_along_axis(ordered, k + (position <= k).astype(np.intp), axis=1)
        for k in ((n - 2) // 2, (n - 1) // 2)
    )
    return np.asarray(values - (low + high) / 2)


def lateness(rows: Rows) -> Iterator[Lateness]:
    """Yield the lateness in complete iterations, for each process set and number of ranks.

    An iteration is complete if all ranks of the set have reported it.
    """
    order = np.lexsort((rows["rank"], rows["process_set"], rows["iteration"]))
    # a rank that waits for a message waits for its sender, not for the last rank
    order = order[rows["messages_ns"][order] == 0]
    iteration_numbers = rows["iteration"][order]
    set_numbers = rows["process_set"][order]
    begins = np.diff(iteration_numbers, prepend=-1) != 0
    begins |= np.diff(set_numbers, prepend=-1) != 0
    start = np.flatnonzero(begins)
    counts = np.diff(start, append=len(order))
    sizes = peers_of(rows)[order[start]]
    sets = set_numbers[start]
    complete = counts == sizes
    for size, number in sorted(set(zip(sizes[complete], sets[complete], strict=True))):
        first = start[complete & (sizes == size) & (sets == number)]
        places = order[first[:, np.newaxis] + np.arange(size)]
        yield _lateness(rows[places], places)


def _lateness(rows: Rows, places: npt.NDArray[np.intp]) -> Lateness:
    is_timed = np.asarray((rows["done_ns"] > 0).all(axis=1, keepdims=True))
    stopped = np.minimum(rows["stopped_ns"], rows["exposed_ns"])
    untimed_duration = np.maximum(rows["communication_ns"] - stopped, 0)
    duration = np.where(is_timed, rows["done_ns"] - rows["last_ns"], untimed_duration)
    stopped_at_last = (rows["exposed_ns"] - stopped) / 1e3
    stopped = stopped / 1e3
    waited = np.minimum((duration - duration.min(axis=1, keepdims=True)) / 1e3, stopped_at_last)
    late = waited.max(axis=1, keepdims=True) - waited
    service = duration.min(axis=1) / 1e3
    arrived = rows["start_ns"] + rows["offset_ns"] + rows["last_ns"]
    skew = (arrived - arrived.min(axis=1, keepdims=True)) / 1e3
    # the errors of two ranks may have opposite signs
    pair_uncertainty = np.sort(rows["uncertainty_ns"], axis=1)[:, -2:].sum(axis=1) / 1e3
    uses_clocks = is_timed[:, 0] & (skew.max(axis=1) > pair_uncertainty)
    upper_bound = skew + np.where(is_timed[:, 0], pair_uncertainty, np.inf)[:, np.newaxis]
    late = np.where(uses_clocks[:, np.newaxis], skew, np.minimum(late, upper_bound))
    uncertainty = np.where(uses_clocks, pair_uncertainty, np.nan)
    # a rank that continues to compute may see the end late, so the first rank to see it counts
    ended = (arrived - rows["last_ns"] + rows["done_ns"]).min(axis=1)
    max_service = np.maximum(0.0, ended - arrived.max(axis=1)) / 1e3 + pair_uncertainty
    service = np.where(is_timed[:, 0], np.fmin(service, max_service), service)
    waited = np.minimum(late.max(axis=1, keepdims=True) - late, stopped_at_last)
    waited += stopped - stopped.min(axis=1, keepdims=True)
    late += stopped.max(axis=1, keepdims=True) - stopped
    transfer_or_queueing = np.maximum(rows["exposed_ns"] / 1e3 - waited, 0)
    rank_transfer = np.minimum(rows["transfer_ns"] / 1e3, transfer_or_queueing)
    stopped_too = transfer_or_queueing >= transfer_or_queueing.max(axis=1, keepdims=True) / 2
    shortest = np.where(stopped_too, rank_transfer, np.inf).min(axis=1, keepdims=True)
    transfer = np.minimum(rank_transfer, shortest)
    transfer[~has_flag(rows, Flag.TRANSFERS_SEEN).all(axis=1)] = np.nan
    return Lateness(rows, places, late, waited, transfer, uncertainty, service)


class ExposedParts(NamedTuple):
    """The parts of the time during which each row's training was stopped, in microseconds.

    All parts of a row are 0 if its training was not stopped.

    Attributes
    ----------
    waiting_us
        Waiting for the last rank; NaN if the rows of some ranks are missing.
    queued_us, transfer_us
        Time in queues and in transfers; NaN if transfers are unknown or the rows of some ranks are
        missing.
    """

    waiting_us: npt.NDArray[np.float64]
    queued_us: npt.NDArray[np.float64]
    transfer_us: npt.NDArray[np.float64]


def exposed_parts(rows: Rows, rings: Iterable[Lateness]) -> ExposedParts:
    """Return the parts of the exposed time of each row; `rings` is the `lateness` of the rows."""
    waiting, transfer = np.full((2, len(rows)), np.nan)
    for ring in rings:
        waiting[ring.places] = ring.waited_us
        transfer[ring.places] = ring.transfer_us
    never_stopped = rows["exposed_ns"] == 0
    waiting[never_stopped] = transfer[never_stopped] = 0
    queued = np.maximum(rows["exposed_ns"] / 1e3 - waiting - transfer, 0)
    return ExposedParts(waiting, queued, transfer)
