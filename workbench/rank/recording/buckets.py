"""Collectives of torch.distributed, such as DDP's buckets, until they have finished."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter_ns
from typing import Protocol

from workbench.rank.recording.collectives import Operation, Reported


class PendingBucket(Protocol):
    """A bucket that DDP reduces.

    Attributes
    ----------
    finished
        The time when a poll first found it done, or 0.
    sent
        The bytes of the collectives that its hook has called; empty if no call was seen.
    """

    finished: int
    sent: list[int]

    def done(self) -> bool:
        """Return whether the bucket is done, without waiting."""


class BucketSource(Protocol):
    """A source of buckets that are noted outside Python."""

    def take_buckets(self) -> Iterable[tuple[Operation, int, int]]:
        """Return the description, submission and end of each bucket since the last call."""


class Buckets:
    """Polls collectives until they have finished, and reports them.

    Attributes
    ----------
    backwards
        Number of backwards that have ended.
    """

    def __init__(self, reported: Reported, sources: Sequence[BucketSource] = ()) -> None:
        self._reported = reported
        self._sources = sources
        self._of_backward: list[tuple[Callable[[], Operation], int, PendingBucket]] = []
        self._following: deque[tuple[Operation, int, PendingBucket]] = deque()
        self.backwards = 0

    def __len__(self) -> int:
        """Return how many buckets DDP has submitted in this backward."""
        return len(self._of_backward)

    @property
    def oldest_sent(self) -> list[int] | None:
        """`PendingBucket.sent` of the oldest bucket that has not finished; in any thread."""
        pending = (bucket for _, _, bucket in tuple(self._of_backward))
        return next((bucket.sent for bucket in pending if not bucket.finished), None)

    def take(self) -> int:
        """Report the buckets that were noted outside Python; return the last submission, or 0."""
        last = 0
        for source in self._sources:
            for operation, submitted, finished in source.take_buckets():
                self._reported.add(operation, submitted, finished)
                last = max(last, submitted)
        return last

    def submitted(
        self, describe: Callable[[], Operation], began: int, bucket: PendingBucket
    ) -> None:
        """Add a bucket that DDP has submitted in a backward; `describe` is called at its end."""
        self.find_done()
        self._of_backward.append((describe, began, bucket))

    def backward_ended(self) -> int:
        """Report the buckets of a backward; return when it ended."""
        self.find_done()
        now = perf_counter_ns()
        self.backwards += 1
        submitted = self._of_backward
        self._of_backward = []
        for describe, began, bucket in submitted:
            operation = describe()
            # `sent` is complete only now: a hook can send more in the callback of a future
            reduced = operation._replace(size=sum(bucket.sent)) if bucket.sent else operation
            self._reported.add(reduced, began, bucket.finished or now)
        return now

    def follow(self, operation: Operation, submitted: int, pending: PendingBucket) -> None:
        """Report a collective once a poll finds it done, after another event or at a step."""
        self._following.append((operation, submitted, pending))
        self.find_done()

    def find_done(self) -> None:
        """Poll all collectives, and report the finished ones."""
        for _, _, bucket in self._of_backward:
            bucket.done()
        for _ in range(len(self._following)):
            try:
                following = self._following.popleft()
            except IndexError:  # another thread looks for them too
                return
            if following[2].done():
                self._reported.add(following[0], following[1], following[2].finished)
            else:
                self._following.append(following)
