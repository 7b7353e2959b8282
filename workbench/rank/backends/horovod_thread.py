"""Horovod's thread, in which all collectives of a rank run.

Without it, the other ranks would wait for this one until Gloo's time limit.
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
"""Number of the field in ``/proc/self/task/TID/stat`` after the name: when it was started."""


class HorovodThread:
    """The thread that ``hvd.init()`` starts; it ends with the ring, or after an error in it.

    Parameters
    ----------
    ended
        Called in another thread after the end of the newest one.
    """

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._id = 0
        """Its number; 0 where it is not known."""

    @contextmanager
    def starts(self) -> Iterator[None]:
        """Find the thread, which the body starts, and watch it."""
        before = _threads()
        yield
        python = {thread.native_id for thread in threading.enumerate()}
        new = {tid: started for tid, started in _threads().items() if tid not in before}
        # it starts the threads of its connections later
        order = sorted((started, tid) for tid, started in new.items() if tid not in python)
        self._id = order[0][1] if order else 0
        if self._id:
            with contextlib.suppress(RuntimeError):  # no memory: its end is noticed after the cell
                in_thread(self._watch, self._id)

    def is_alive(self) -> bool:
        """Return whether it runs, or is not known."""
        return not self._id or _is_alive(self._id)

    def _watch(self, tid: int) -> None:
        while True:
            with contextlib.suppress(MemoryError):  # the cell has used all
                if not _is_alive(tid):
                    break
            time.sleep(_PERIOD_S)
        if tid == self._id:
            self._ended()


def _is_alive(tid: int) -> bool:
    return (_TASKS / str(tid)).exists()


def _threads() -> dict[int, int]:
    """Return when each thread of this process was started, in ticks; empty without /proc."""
    started = {}
    with contextlib.suppress(OSError):
        for path in _TASKS.iterdir():
            with contextlib.suppress(OSError):  # it has ended
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                started[int(path.name)] = int(fields[_STARTED])
    return started
