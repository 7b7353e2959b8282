"""The gradient collectives of one iteration: submitted, and finished between when and when.

Horovod tells only whether a handle is done. Each submission polls the oldest
outstanding handles, so every completion is bracketed between the last moment
it was seen unfinished and the first it was seen finished.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from time import perf_counter_ns


class Collectives:
    """Intervals in nanoseconds of ``time.perf_counter_ns()``.

    Parameters
    ----------
    poll
        Tells whether a handle is done; never called with a cleared handle.

    Attributes
    ----------
    names, sizes, counts
        Per collective: its name, bytes on the wire, gradient tensors in it.
    submitted, unfinished, finished
        Per collective: when it was handed over, last seen unfinished, and
        first seen finished (0 where nobody waited for it).
    """

    def __init__(self, poll: Callable[[int], bool]) -> None:
        self._poll = poll
        self.names: list[str] = []
        self.sizes: list[int] = []
        self.counts: list[int] = []
        self.submitted: list[int] = []
        self.unfinished: list[int] = []
        self.finished: list[int] = []
        self._handles: list[Hashable] = []
        self._places: dict[Hashable, int] = {}
        self._oldest = 0

    @property
    def outstanding(self) -> int:
        """Collectives submitted and not waited for."""
        return len(self._places)

    def split(self) -> Collectives:
        """Take out what has not been waited for, as collectives of the next step."""
        rest = Collectives(self._poll)
        for handle, place in self._places.items():
            rest._places[handle] = len(rest.submitted)
            rest._handles.append(handle)
            rest.names.append(self.names[place])
            rest.sizes.append(self.sizes[place])
            rest.counts.append(self.counts[place])
            rest.submitted.append(self.submitted[place])
            rest.unfinished.append(self.unfinished[place])
            rest.finished.append(self.finished[place])
            self.finished[place] = 0  # this step's record leaves it out
        self._places = {}
        return rest

    def submit(self, handle: Hashable, name: str, size: int, count: int, began: int) -> None:
        """Note a submission of `size` bytes in `count` tensors that began at `began`."""
        place = len(self.submitted)
        self._places[handle] = place
        self._handles.append(handle)
        self.names.append(name)
        self.sizes.append(size)
        self.counts.append(count)
        self.submitted.append(began)
        self.unfinished.append(began)
        self.finished.append(0)
        if self._oldest < place:
            self._look(place)

    def waiting(self, handle: Hashable) -> str | None:
        """Note that the caller is about to wait; return the name if the handle is ours."""
        place = self._places.get(handle)
        if place is None:
            return None
        if not self.finished[place]:
            self._see(place, handle)
        return self.names[place]

    def waited(self, handle: Hashable) -> None:
        """Note that the wait has returned and the handle is cleared."""
        place = self._places.pop(handle, None)
        if place is not None and not self.finished[place]:
            self.finished[place] = perf_counter_ns()

    def _look(self, end: int) -> None:
        """Poll the oldest outstanding handles up to the first unfinished one."""
        while self._oldest < end:
            if not self.finished[self._oldest]:
                handle = self._handles[self._oldest]
                if handle in self._places and not self._see(self._oldest, handle):
                    return
            self._oldest += 1

    def _see(self, place: int, handle: Hashable) -> bool:
        # a sparse allreduce is a closure over two handles; it cannot be asked
        if not isinstance(handle, int):
            return True
        done = self._poll(handle)
        (self.finished if done else self.unfinished)[place] = perf_counter_ns()
        return done
