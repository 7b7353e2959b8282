"""Computes which collectives travelled in one buffer, and how long its transfer took.

Horovod transfers the collectives of a buffer together; they have the same response. Every rank
begins the transfer when it has the response, and all ranks end it together. So the rank that began
last did not wait for another rank: its time is the duration of the transfer.

For DDP's buckets, only the submission and the end are known. Buckets are reduced in turn. So
a bucket's transfer begins at the earliest when the bucket is submitted and the bucket before it has
ended. The shortest time from there to the end, among the ranks, is an upper bound of the duration.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from workbench.wire import Layout
from workbench.wire.record import TIMES

Floats = npt.NDArray[np.float64]


def is_timed(layout: Layout) -> npt.NDArray[np.bool_]:
    """Return a mask of the collectives with all `TIMES` recorded.

    If the library of a collective is unknown, only its submission and its end are recorded.
    """
    return np.array([bool(library) for library in layout.libraries], bool)


def number_buffers(times: npt.NDArray[np.int64], layout: Layout) -> npt.NDArray[np.int64]:
    """Return the number of each collective's buffer; buffers are numbered as they complete.

    Parameters
    ----------
    times
        Times of one rank and iteration, of shape (TIMES, collectives).
    """
    if not times.shape[1]:
        return np.empty(0, np.int64)
    # a collective without a known response counts as a buffer of its own
    responded = np.where(is_timed(layout), times[TIMES.index("responded")], -1)
    alone = np.where(responded < 0, np.arange(len(responded)), -1)
    keys = np.stack([np.array(layout.process_sets), alone, responded])
    _, first, buffer = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(times[-1][first], kind="stable"), kind="stable")
    return np.asarray(order[buffer.reshape(-1)], np.int64)


def service_times(times: npt.NDArray[np.int64], layout: Layout) -> Floats:
    """Return how long the transfer of each collective's buffer took, in the unit of `times`.

    Parameters
    ----------
    times
        Times of all ranks of an iteration, of shape (ranks, TIMES, collectives).
    """
    submitted, _, began, ended, finished = times.transpose(1, 0, 2)
    order = np.argsort(finished[0], kind="stable")
    previous_finished = np.zeros_like(finished)
    previous_finished[:, order[1:]] = finished[:, order[:-1]]
    upper_bound = finished - np.maximum(submitted, previous_finished)
    service = np.where(is_timed(layout), ended - began, upper_bound).min(axis=0)
    return np.asarray(np.maximum(service, 0), np.float64)
