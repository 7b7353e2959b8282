"""Finished collectives of a rank, and the sources of their times."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from workbench.wire.record import TIMES

LIMIT = 1 << 15
"""Maximum number of collectives that are kept until the sender takes them."""
UNNAMED = " without a name"
"""End of the label of an unnamed operation; Horovod identifies such operations by a number."""


class Operation(NamedTuple):
    """Description of one collective, with the fields of `workbench.wire.Layout`."""

    name: str
    size: int
    tensors: int
    kind: str = "allreduce"
    process_set: int = 0
    ranks: int = 0
    by: str = "optimizer"
    library: str = ""
    group: str = ""
    peer: int = -1


@dataclass(frozen=True)
class Collected:
    """A batch of finished collectives.

    Attributes
    ----------
    operations
        Description of each collective.
    times
        ``time.perf_counter_ns()`` of shape (`TIMES`, operations).
    """

    operations: tuple[Operation, ...]
    times: npt.NDArray[np.int64]

    @staticmethod
    def join(parts: Iterable[Collected]) -> Collected:
        """Return all collectives of `parts`."""
        nonempty = [part for part in parts if part.operations]
        if len(nonempty) == 1:
            return nonempty[0]
        operations = tuple(operation for part in nonempty for operation in part.operations)
        return Collected(operations, np.hstack([_NO_TIMES, *(part.times for part in nonempty)]))


_NO_TIMES = np.empty((len(TIMES), 0), np.int64)
NONE = Collected((), _NO_TIMES)


class CollectiveSource(Protocol):
    """A source of finished collectives."""

    @property
    def lost(self) -> int:
        """Number of collectives that were not recorded."""

    def take(self, until: int) -> Collected:
        """Return the collectives that have finished by `until` and were not returned before.

        The sender's thread calls this.
        """

    def take_each(self, untils: Sequence[int], handles: Sequence[Sequence[int]]) -> list[Collected]:
        """Return the result of `take` for each moment, restricted by handles.

        A collective with a handle is returned for a moment only if the handle is one of `handles`
        for this moment.

        Parameters
        ----------
        untils
            The moments, in order; at least one.
        handles
            For each moment, the handles of the collectives that the rank has waited for.
        """


class Reported:
    """Collectives whose submission and end are known from hooks, without further times.

    Attributes
    ----------
    on
        Whether they are kept; see `Recorder.on`.
    lost
        Number of collectives that were discarded because more than `LIMIT` were not taken.
    """

    def __init__(self) -> None:
        self.on = True
        self.lost = 0
        self._finished: deque[tuple[Operation, int, int]] = deque()

    def add(self, operation: Operation, submitted: int, finished: int) -> None:
        """Add a collective that has finished."""
        if not self.on:
            return
        if len(self._finished) >= LIMIT:
            self.lost += self._pop() is not None
        self._finished.append((operation, submitted, finished))

    def take_each(self, untils: Sequence[int], _: Sequence[Sequence[int]]) -> list[Collected]:
        """Return the result of `take` for each moment."""
        if not self._finished:
            return [NONE] * len(untils)
        records = list(self._finished)
        parts: list[list[tuple[Operation, int, int]]] = [[] for _ in range(len(untils) + 1)]
        for record in records:
            parts[bisect_left(untils, record[2])].append(record)
        collected = [_collected(part) for part in parts[:-1]]
        # removed only now: after a MemoryError, the next call returns them
        for _record in records:
            popped = self._pop()
            if popped is None or popped is records[-1]:  # `add` may have discarded some
                break
        self._finished.extendleft(reversed(parts[-1]))
        return collected

    def take(self, until: int) -> Collected:
        """Return the collectives that have finished by `until` and were not returned before."""
        return self.take_each([until], ())[0]

    def _pop(self) -> tuple[Operation, int, int] | None:
        try:
            return self._finished.popleft()
        except IndexError:  # another thread has taken the last one
            return None


def _collected(reported: Sequence[tuple[Operation, int, int]]) -> Collected:
    if not reported:
        return NONE
    operations, submitted, finished = zip(*reported, strict=True)
    # the exact times of the transfer are unknown: it lies between submission and end
    columns = (submitted, submitted, submitted, finished, finished)
    return Collected(operations, np.array(columns, np.int64))
