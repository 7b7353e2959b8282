"""Who waited for whom: when each rank submitted the last collective of an iteration.

A collective ends on all ranks at the same time, after the last rank has submitted it. So if a
rank's last collective took longer than that of the last rank, the rank waited for the
difference. This needs no clocks, but a rank that is busy sees the end too late: its waiting is
limited by the time during which its training was stopped. If the clocks are known and the
ranks' submissions are further apart than the clocks' uncertainty, the clocks are used.

A rank may also wait earlier in the iteration: for an averaged loss, at a barrier, in the step of
another optimizer. All ranks stop there equally often, and the last rank hardly waits. So a rank
waited there for the time by which it was stopped longer than the rank that was stopped for the
shortest time. This is too little if several ranks are late in turn in one iteration.

What is left of the time in which training was stopped is transfer or queueing. From the last
submission of the last rank on, all ranks wait for the same transfers. The last rank has stopped
for these and no others, so the transfer time of the rank with the shortest is that of all that
have stopped. A rank that computes on stops for less. The rest is queueing: negotiation, the
backend's cycles, and copies into and out of buffers.
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
        The index of each of them in the rows that were given.
    late_us
        Delay of the rank's last submission after the first rank: 0 or more.
    waited_us
        How long the rank's training was stopped because of the last rank: how much later than
        this one it submitted its gradients, as far as training was stopped. If all ranks had been
        as early as this one, it would have been stopped for so much less.
    transfer_us
        How long it was stopped for transfers after that; NaN in iterations with unknown ones.
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
    """Return the difference of each value from the median of the other values of its row."""
    n = values.shape[1]
    order = np.argsort(values, axis=1)
    place = np.argsort(order, axis=1)
    ordered = np.take_along_axis(values, order, axis=1)
    # without the column itself, the values after it move up by one
    low, high = (
        np.take_along_axis(ordered, k + (place <= k).astype(np.intp), axis=1)
        for k in ((n - 2) // 2, (n - 1) // 2)
    )
    return np.asarray(values - (low + high) / 2)


def lateness(rows: Rows) -> Iterator[Lateness]:
    """Yield the complete iterations of `rows`, separately by process set and number of ranks."""
    order = np.lexsort((rows["rank"], rows["process_set"], rows["iteration"]))
    # who waits for a message waits for one rank, not for the last one
    order = order[rows["messages_ns"][order] == 0]
    of_iteration, of_set = rows["iteration"][order], rows["process_set"][order]
    begins = (np.diff(of_iteration, prepend=-1) != 0) | (np.diff(of_set, prepend=-1) != 0)
    start = np.flatnonzero(begins)
    counts = np.diff(start, append=len(order))
    sizes, sets = peers_of(rows)[order[start]], of_set[start]
    complete = counts == sizes
    for size, number in sorted(set(zip(sizes[complete], sets[complete], strict=True))):
        first = start[complete & (sizes == size) & (sets == number)]
        places = order[first[:, np.newaxis] + np.arange(size)]
        yield _lateness(rows[places], places)


def _lateness(rows: Rows, places: npt.NDArray[np.intp]) -> Lateness:
    known = np.asarray((rows["done_ns"] > 0).all(axis=1, keepdims=True))
    stopped = np.minimum(rows["stopped_ns"], rows["exposed_ns"])
    unmarked = np.maximum(rows["communication_ns"] - stopped, 0)
    spent = np.where(known, rows["done_ns"] - rows["last_ns"], unmarked)
    stopped, at_last = stopped / 1e3, (rows["exposed_ns"] - stopped) / 1e3
    waited = np.minimum((spent - spent.min(axis=1, keepdims=True)) / 1e3, at_last)
    late = waited.max(axis=1, keepdims=True) - waited
    service = spent.min(axis=1) / 1e3
    arrived = rows["start_ns"] + rows["offset_ns"] + rows["last_ns"]
    skew = (arrived - arrived.min(axis=1, keepdims=True)) / 1e3
    # the errors of two ranks may have opposite signs
    doubt = np.sort(rows["uncertainty_ns"], axis=1)[:, -2:].sum(axis=1) / 1e3
    clear = known[:, 0] & (skew.max(axis=1) > doubt)
    most = skew + np.where(known[:, 0], doubt, np.inf)[:, np.newaxis]
    late = np.where(clear[:, np.newaxis], skew, np.minimum(late, most))
    uncertainty = np.where(clear, doubt, np.nan)
    # a rank that computes on may see the end late: the first rank that saw it counts
    ended = (arrived - rows["last_ns"] + rows["done_ns"]).min(axis=1)
    most_service = np.maximum(0.0, ended - arrived.max(axis=1)) / 1e3 + doubt
    service = np.where(known[:, 0], np.fmin(service, most_service), service)
    waited = np.minimum(late.max(axis=1, keepdims=True) - late, at_last)
    waited += stopped - stopped.min(axis=1, keepdims=True)
    late += stopped.max(axis=1, keepdims=True) - stopped
    rest = np.maximum(rows["exposed_ns"] / 1e3 - waited, 0)
    own = np.minimum(rows["transfer_ns"] / 1e3, rest)
    stopped_too = rest >= rest.max(axis=1, keepdims=True) / 2
    shortest = np.where(stopped_too, own, np.inf).min(axis=1, keepdims=True)
    transfer = np.minimum(own, shortest)
    transfer[~has_flag(rows, Flag.TRANSFERS_SEEN).all(axis=1)] = np.nan
    return Lateness(rows, places, late, waited, transfer, uncertainty, service)


class ExposedParts(NamedTuple):
    """What each row's rank waited for while its training was stopped, in microseconds.

    All are 0 if it was not stopped.

    Attributes
    ----------
    waiting_us
        For the last rank; NaN without rows of all ranks.
    queued_us, transfer_us
        In queues, and for transfers; NaN if these or the rows of all ranks are unknown.
    """

    waiting_us: npt.NDArray[np.float64]
    queued_us: npt.NDArray[np.float64]
    transfer_us: npt.NDArray[np.float64]


def exposed_parts(rows: Rows, rings: Iterable[Lateness]) -> ExposedParts:
    """Return the parts of the exposed time of each row; `rings` are their `lateness`."""
    waiting, transfer = np.full((2, len(rows)), np.nan)
    for found in rings:
        waiting[found.places] = found.waited_us
        transfer[found.places] = found.transfer_us
    never = rows["exposed_ns"] == 0
    waiting[never] = transfer[never] = 0
    queued = np.maximum(rows["exposed_ns"] / 1e3 - waiting - transfer, 0)
    return ExposedParts(waiting, queued, transfer)
