"""One snapshot for many requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from workbench.resources import Snapshot


class SnapshotCache:
    """Takes snapshots in a thread, and gives the last one while it is young.

    Parameters
    ----------
    take
        Takes a snapshot; called in a thread, once at a time.
    max_age_s
        Seconds for which a snapshot is young.
    """

    def __init__(self, take: Callable[[], Snapshot], max_age_s: float = 5.0) -> None:
        self._take = take
        self._max_age_s = max_age_s
        self._lock = asyncio.Lock()
        self._snapshot: Snapshot | None = None
        self._taken_s = 0.0

    async def get(self) -> Snapshot:
        """Give a young snapshot; requests that come together share one."""
        async with self._lock:
            age_s = time.monotonic() - self._taken_s
            if self._snapshot is None or age_s > self._max_age_s:
                self._snapshot = await asyncio.to_thread(self._take)
                self._taken_s = time.monotonic()
            return self._snapshot
