"""The CPU time of the threads that a backend has started to communicate."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

_TASKS = Path("/proc/self/task")
_OTHERS = "ZMQbg"
"""Prefix of the names of ZeroMQ's threads, which may start at the same time."""
_PER_THREAD = 6
"""Marks the number of a clock as the CPU time of one thread (Linux)."""


class CommunicationThreads:
    """Threads of C++ that were started while the ring was formed."""

    def __init__(self) -> None:
        self._before: set[int] = set()
        self._used_ns: dict[int, int] = {}

    def begin(self) -> None:
        """Note the existing threads before the ring is formed."""
        self._before = set(_threads())

    def find(self) -> None:
        """Find the threads that were started since `begin`."""
        python = {thread.native_id for thread in threading.enumerate()}
        used_ns = {}
        for tid in set(_threads()) - self._before - python:
            with contextlib.suppress(OSError):  # the thread has ended
                if not (_TASKS / str(tid) / "comm").read_text().startswith(_OTHERS):
                    used_ns[tid] = 0
        self._used_ns = used_ns  # is set last, because another thread may be in `cpu_ns`

    def cpu_ns(self) -> int:
        """Return the CPU time of these threads so far in nanoseconds; 0 without threads."""
        used_ns = self._used_ns
        for tid in used_ns:
            with contextlib.suppress(OSError):  # the thread has ended: the last reading counts
                used_ns[tid] = time.clock_gettime_ns((~tid << 3) | _PER_THREAD)
        return sum(used_ns.values())


def _threads() -> list[int]:
    """Return the numbers of this process's threads; empty where the system has no /proc."""
    try:
        return [int(path.name) for path in _TASKS.iterdir()]
    except OSError:
        return []
