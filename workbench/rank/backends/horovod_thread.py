"""Horovod's thread, which runs all collectives of a rank.

If it ends, the other ranks would wait for this rank until Gloo's time limit.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from workbench.rank.backends.backend import in_thread

_TASKS = Path("/proc/self/task")
_PERIOD_S = 0.5
_STARTED = 19
"""Index of the start time among the fields after the name in ``/proc/self/task/TID/stat``."""


class HorovodThread:
    """The thread that ``hvd.init()`` starts; it ends with the ring, or after an error in it.

    Parameters
    ----------
    ended
        Called in another thread after the end of the newest Horovod thread.
    """

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._id = 0
        """Number of the thread; 0 if unknown."""

    @contextmanager
    def starts(self) -> Iterator[None]:
        """Find and watch the thread that the body starts."""
        before = _threads()
        yield
        python = {thread.native_id for thread in threading.enumerate()}
        new = {tid: started for tid, started in _threads().items() if tid not in before}
        # Horovod's thread starts the threads of its connections later, so the oldest is Horovod's
        order = sorted((started, tid) for tid, started in new.items() if tid not in python)
        self._id = order[0][1] if order else 0
        if self._id:
            with contextlib.suppress(RuntimeError):  # no memory for a thread: not watched
                in_thread(self._watch, self._id)

    def is_alive(self) -> bool:
        """Return whether the thread runs; True if it is unknown."""
        return not self._id or _is_alive(self._id)

    def _watch(self, tid: int) -> None:
        while True:
            with contextlib.suppress(MemoryError):  # the cell has used all memory
                if not _is_alive(tid):
                    break
            time.sleep(_PERIOD_S)
        if tid == self._id:
            self._ended()


def _is_alive(tid: int) -> bool:
    return (_TASKS / str(tid)).exists()


def _threads() -> dict[int, int]:
    """Return the start time of each thread of this process in ticks; empty without /proc."""
    started = {}
    with contextlib.suppress(OSError):
        for path in _TASKS.iterdir():
            with contextlib.suppress(OSError):  # the thread has ended
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                started[int(path.name)] = int(fields[_STARTED])
    return started
