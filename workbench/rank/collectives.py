"""The collectives of one step: submitted, and finished between when and when.

Horovod tells only whether a handle is done. Each submission polls the oldest
outstanding handles, and a wait polls its own, so every completion is bracketed
between the last moment it was seen unfinished and the first it was seen finished.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from time import perf_counter_ns, sleep
from typing import Any, NamedTuple

WATCH_SHARE = 1 / 64
"""A wait looks again after this share of what it has taken: it gets longer by half of that..."""
WATCH_MOST_S = 0.0005
"""...and by this at most."""
LIMIT = 1 << 15
"""Collectives without a step, such as of a cell that never steps, that are kept (10 MB)."""


UNNAMED = " without a name"
"""The end of what an operation is called that has no name: its ranks must give it one number."""


class Operation(NamedTuple):
    """What one collective is; the fields of `wire.Layout`, one by one."""

    name: str
    size: int
    tensors: int
    kind: str = "allreduce"
    process_set: int = 0
    ranks: int = 0
    by: str = "optimizer"


@dataclass
class Collected:
    """The collectives that led to one step, in the order of their submission.

    Lists of equal length; times as ``time.perf_counter_ns()``.

    Attributes
    ----------
    operations
        What each is.
    submitted, unfinished, finished
        When it was handed over, last seen unfinished, and first seen finished
        (0 until then).
    """

    operations: list[Operation] = field(default_factory=list)
    submitted: list[int] = field(default_factory=list)
    unfinished: list[int] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)

    def split(self, moment: int) -> tuple[Collected, Collected]:
        """Return those that had finished by a moment, and the others."""
        places = range(len(self.finished))
        return (
            self.pick(place for place in places if self.finished[place] <= moment),
            self.pick(place for place in places if self.finished[place] > moment),
        )

    def pick(self, places: Iterable[int]) -> Collected:
        """Return those at `places`."""
        rows = list(places)
        return Collected(
            [self.operations[place] for place in rows],
            [self.submitted[place] for place in rows],
            [self.unfinished[place] for place in rows],
            [self.finished[place] for place in rows],
        )


class Collectives:
    """What a rank has submitted for one step, in order.

    `submit`, `find`, `see`, `watch` and `waited` run for every tensor, between kernels
    that have emptied the caches: they call as little as they can, and make no
    object that the garbage collector would have to follow.

    Parameters
    ----------
    poll
        Tells whether a handle is done; ValueError where it was cleared.
    full
        Gets what was waited for, once there are `LIMIT` without a step.

    Attributes
    ----------
    find
        Returns the place of a handle that was submitted and not waited for, or None.
    """

    def __init__(
        self, poll: Callable[[Any], bool | int], full: Callable[[Collected], None]
    ) -> None:
        self._poll = poll
        self._full = full
        self._open: dict[Hashable, int] = {}
        self.find = self._open.get
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        self._taken = self._left = 0
        self._of_sets: dict[int, int] = {}
        self._empty()

    def _empty(self) -> None:
        self._open.clear()
        self._handles: list[Hashable] = []
        self._all = Collected()
        self._oldest = 0

    def __len__(self) -> int:
        """Return how many were submitted."""
        return len(self._handles)

    @property
    def of_optimizers(self) -> bool:
        """Whether an optimizer has submitted any."""
        return any(operation.by != "cell" for operation in self._all.operations)

    @property
    def outstanding(self) -> int:
        """Collectives submitted and not waited for, barriers included."""
        return len(self._open) + self._left

    @property
    def calls(self) -> dict[int, int]:
        """How many were submitted since `clear`, by the number of their process set."""
        of_sets = self._of_sets.copy()
        return {0: self._taken + len(self._handles) - sum(of_sets.values()), **of_sets}

    def under_way(self) -> list[str]:
        """Return the names of collectives that are not done and not waited for; in any thread."""
        found = []
        for handle, place in list(self._open.items()):
            try:
                done = self._poll(handle)
            except ValueError:  # cleared meanwhile
                continue
            if not done:
                found.append(self._all.operations[place].name)
        return found

    def operation(self, place: int) -> Operation:
        """Return what the collective at `place` is."""
        return self._all.operations[place]

    def take(self) -> Collected:
        """Return what was waited for; the rest stays, as collectives of the next step."""
        taken, left = self._all, self._open.copy()
        self._taken += len(self._handles) - len(left)
        self._empty()
        if left:
            self._handles = list(left)
            self._open |= {handle: place for place, handle in enumerate(left)}
            self._all = taken.pick(left.values())
            gone = set(left.values())
            taken = taken.pick(place for place in range(len(taken.finished)) if place not in gone)
        return taken

    def submit(self, operation: Operation, handle: Hashable, began: int) -> None:
        """Note a submission that began at `began`."""
        place = len(self._handles)
        if operation.process_set:
            number = operation.process_set
            self._of_sets[number] = self._of_sets.get(number, 0) + 1
        if self._oldest < place:
            self._look(began)
        self._open[handle] = place
        self._handles.append(handle)
        every = self._all
        every.operations.append(operation)
        every.submitted.append(began)
        every.unfinished.append(began)
        every.finished.append(0)
        if place == LIMIT:
            self._full(self.take())

    def done(self, handle: Hashable) -> bool:
        """Tell whether it was seen to be done; the wait for it then needs no note."""
        place = self._open.get(handle)
        if place is None or not self._all.finished[place]:
            return False
        del self._open[handle]
        return True

    def see(self, place: int, now: int) -> bool:
        """Tell whether it is seen to be done; `now` is a moment just before."""
        if self._all.finished[place]:
            return True
        handle = self._handles[place]
        try:
            if not self._poll(handle):
                self._all.unfinished[place] = now
                return False
        except ValueError:
            pass  # cleared where nobody told us: it is done, and training must not fail for it
        self._all.finished[place] = perf_counter_ns()
        return True

    def watch(self, handle: Hashable) -> None:
        """Wait until it is done.

        Horovod's own wait does not pause between its looks, and takes the core
        that its threads, or those that load data, may need. A barrier and a
        join() are waited for as well: only their submission is not heard.
        """
        place = self._open.get(handle)
        if place is None and not isinstance(handle, int):
            return  # of several collectives, each of which is waited for
        began = now = perf_counter_ns()
        try:
            while not (self._ended(handle) if place is None else self.see(place, now)):
                sleep(min((now - began) * WATCH_SHARE * 1e-9, WATCH_MOST_S))
                now = perf_counter_ns()
        except BaseException:  # interrupted
            self._left += place is None
            raise

    def _ended(self, handle: Hashable) -> bool:
        """Tell whether what was not noted here is done; where it is cleared, it is."""
        try:
            return bool(self._poll(handle))
        except ValueError:
            return True

    def waited(self, handle: Hashable, finished: int = 0) -> None:
        """Note that the wait for it has returned, and that the handle is cleared.

        Parameters
        ----------
        finished
            When it did, where that is known.
        """
        place = self._open.pop(handle, None)
        if place is None:
            return
        now = perf_counter_ns()
        if finished:  # better known than by a poll that came later
            self._all.finished[place] = self._all.unfinished[place] = finished
        elif not self._all.finished[place]:
            self._all.finished[place] = now
        # others may have travelled in the same buffer
        self._look(now)

    def _look(self, now: int) -> None:
        """Poll from the oldest that may be under way to the first that is."""
        while self._oldest < len(self._handles):
            if not self.see(self._oldest, now):
                return
            self._oldest += 1
