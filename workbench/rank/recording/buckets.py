"""Collectives of torch.distributed, such as DDP's buckets, until they have finished."""

from __future__ import annotations

from collections import deque
from time import perf_counter_ns
from typing import Protocol

from workbench.rank.recording.collectives import Operation, Reported
from workbench.rank.recording.waits import Waits


class PendingBucket(Protocol):
    """A bucket that DDP reduces.

    Attributes
    ----------
    finished
        The time when it was found done, or 0.
    sent
        The bytes of the collectives that its hook has called; empty if none was seen.
    """

    finished: int
    sent: list[int]

    def done(self) -> bool:
        """Return whether it is done, without waiting."""


class Buckets:
    """Finds when collectives have finished, and reports them."""

    def __init__(self, reported: Reported, waits: Waits) -> None:
        self._reported = reported
        self._waits = waits
        self._of_backward: list[tuple[Operation, int, PendingBucket]] = []
        self._waiting = False
        self._following: deque[tuple[Operation, int, PendingBucket]] = deque()

    def __len__(self) -> int:
        """Return how many buckets DDP has submitted in this backward."""
        return len(self._of_backward)

    @property
    def oldest_sent(self) -> list[int] | None:
        """`PendingBucket.sent` of the oldest bucket that has not finished; in any thread."""
        pending = (bucket for _, _, bucket in tuple(self._of_backward))
        return next((bucket.sent for bucket in pending if not bucket.finished), None)

    def submitted(
        self, operation: Operation, bucket: PendingBucket, began: int, *, waits: bool
    ) -> None:
        """Add a bucket of DDP; with `waits`, the backward now waits for all buckets."""
        self._end_wait()  # that was not the last one, if there are several models
        self.find_done()
        self._of_backward.append((operation, began, bucket))
        if waits:
            self._waiting = True
            self._waits.exposed_begins()

    def backward_ended(self) -> int:
        """Report the buckets of a backward; return when it ended."""
        self._end_wait()
        self.find_done()
        now = perf_counter_ns()
        for operation, submitted, bucket in self._of_backward:
            # complete only now: a hook can send more in the callback of a future
            reduced = operation._replace(size=sum(bucket.sent)) if bucket.sent else operation
            self._reported.add(reduced, submitted, bucket.finished or now)
        self._of_backward.clear()
        return now

    def follow(self, operation: Operation, submitted: int, pending: PendingBucket) -> None:
        """Report a collective when it is found done: soon after another event, or at a step."""
        self._following.append((operation, submitted, pending))
        self.find_done()

    def find_done(self) -> None:
        """Find which have finished."""
        for _, _, bucket in self._of_backward:
            bucket.done()
        for _ in range(len(self._following)):
            try:
                one = self._following.popleft()
            except IndexError:  # another thread looks for them too
                return
            if one[2].done():
                self._reported.add(one[0], one[1], one[2].finished)
            else:
                self._following.append(one)

    def _end_wait(self) -> None:
        if self._waiting:
            self._waiting = False
            self._waits.exposed_ends()
