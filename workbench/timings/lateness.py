"""Who waited for whom: when each rank of an iteration was ready for its last collective.

The ranks of an iteration end it together, when the last of them has handed
over its last gradients and these are reduced. What a rank's last collective
took longer than that of the rank that came last was waiting: so lateness is
known without comparing clocks, as far as all see the end at the same moment.
One that was busy when its gradients were reduced sees the end later: nobody
waited longer than its training stood still.
Where the clocks are known and the ranks arrive further apart than these may be
off, the clocks tell.

A rank may wait earlier in the iteration too: for a loss that is averaged, at a
barrier, in the step of another optimizer. All ranks stop there equally often,
and the last one to come hardly waits. So what a rank stood still there longer
than the one that stood still for the shortest time was waiting. It is less than
the truth where several ranks are late in turn within one iteration.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workbench.timings.store import Rows, peers_of

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Lateness:
    """The iterations that every rank of a ring has reported; one row each, one column a rank.

    Attributes
    ----------
    rows
        Their rows.
    places
        Where each stands in the rows that were asked about.
    late_us
        Behind the rank that came first: 0 or more.
    waited_us
        For the rank that came last, while training stood still.
    uncertainty_us
        How far the difference of two ranks may be off, per iteration; NaN
        where it was told without clocks.
    service_us
        At most how long the last collective took once all had come to it, per iteration.
    """

    rows: Rows
    places: npt.NDArray[np.intp]
    late_us: Matrix
    waited_us: Matrix
    uncertainty_us: npt.NDArray[np.float64]
    service_us: npt.NDArray[np.float64]

    @property
    def iterations(self) -> npt.NDArray[np.int64]:
        """Their numbers."""
        return np.asarray(self.rows["iteration"][:, 0])

    @property
    def ranks(self) -> npt.NDArray[np.int64]:
        """The ring's ranks."""
        return np.asarray(self.rows["rank"][0])


def behind(values: Matrix) -> Matrix:
    """Return by how much each column is above the median of the others, row by row."""
    n = values.shape[1]
    order = np.argsort(values, axis=1)
    place = np.argsort(order, axis=1)
    ordered = np.take_along_axis(values, order, axis=1)
    # the others in order: those behind a column's own place move up by one
    low, high = (
        np.take_along_axis(ordered, k + (place <= k).astype(np.intp), axis=1)
        for k in ((n - 2) // 2, (n - 1) // 2)
    )
    return np.asarray(values - (low + high) / 2)


def lateness(rows: Rows) -> Iterator[Lateness]:
    """Return the complete iterations of `rows`: each process set's, and number of ranks', apart."""
    order = np.lexsort((rows["rank"], rows["process_set"], rows["iteration"]))
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
    uncertainty = np.full(len(rows), np.nan)
    service = spent.min(axis=1) / 1e3
    if "uncertainty_ns" in (rows.dtype.names or ()):
        arrived = rows["start_ns"] + rows["offset_ns"] + rows["last_ns"]
        skew = (arrived - arrived.min(axis=1, keepdims=True)) / 1e3
        # two ranks may both be off, in opposite directions
        doubt = np.sort(rows["uncertainty_ns"], axis=1)[:, -2:].sum(axis=1) / 1e3
        clear = known[:, 0] & (skew.max(axis=1) > doubt)
        most = skew + np.where(known[:, 0], doubt, np.inf)[:, np.newaxis]
        late = np.where(clear[:, np.newaxis], skew, np.minimum(late, most))
        uncertainty = np.where(clear, doubt, np.nan)
        # the last rank to come may compute on, and see only then that the others are done
        ended = (arrived - rows["last_ns"] + rows["done_ns"]).min(axis=1)
        most_service = np.maximum(0.0, ended - arrived.max(axis=1)) / 1e3 + doubt
        service = np.where(known[:, 0], np.fmin(service, most_service), service)
    waited = np.minimum(late.max(axis=1, keepdims=True) - late, at_last)
    waited += stopped - stopped.min(axis=1, keepdims=True)
    late += stopped.max(axis=1, keepdims=True) - stopped
    return Lateness(rows, places, late, waited, uncertainty, service)


def waiting_us(rows: Rows) -> npt.NDArray[np.float64]:
    """Return how long each row's rank waited for the one that came last, while it stood still.

    NaN where not every rank of the ring has reported.
    """
    waits = np.full(len(rows), np.nan)
    for found in lateness(rows):
        waits[found.places] = found.waited_us
    return waits
