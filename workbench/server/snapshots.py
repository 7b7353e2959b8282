"""Cache of the snapshot, shared by requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from workbench.resources import Snapshot


class SnapshotCache:
    """Takes snapshots in a thread, and returns the last one while it is recent.

    Parameters
    ----------
    take
        Takes a snapshot; called in a thread, never concurrently.
    max_age_s
        Age in seconds up to which a snapshot is recent.
    """

    def __init__(self, take: Callable[[], Snapshot], max_age_s: float = 5.0) -> None:
        self._take = take
        self._max_age_s = max_age_s
        self._lock = asyncio.Lock()
        self._snapshot: Snapshot | None = None
        self._taken_s = 0.0

    async def get(self) -> Snapshot:
        """Return a recent snapshot; concurrent requests share one."""
        async with self._lock:
            age_s = time.monotonic() - self._taken_s
            if self._snapshot is None or age_s > self._max_age_s:
                self._snapshot = await asyncio.to_thread(self._take)
                self._taken_s = time.monotonic()
            return self._snapshot
