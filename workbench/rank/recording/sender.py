"""Sends the records of finished iterations, several in one message.

Training shares the cores with the threads that pack, encrypt and receive. Waking these threads
costs training more than another record in the same message.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice

from workbench.rank.recording.collectives import CollectiveSource
from workbench.rank.recording.iteration import Recorded, RecordedIteration
from workbench.rank.recording.logged import LoggedQueue
from workbench.rank.recording.pack import Packer
from workbench.wire import Address, Layout, Message, Outbox
from workbench.wire.rank_messages import Records

DELAY_S = 0.09
"""Records of this period are sent together; a live view is updated at the same rate."""
LIMIT = 10_000
"""Maximum number of iterations that are kept while the kernel does not receive them."""
_MAX_BATCH = 64
"""Maximum number of iterations that are packed together."""
_MEMORY_BYTES = 1 << 18
"""Size of the memory that must be free before iterations are packed."""
_FLUSH_S = 2.0
_POLL_S = 0.01


class RecordChannel:
    """Sends the recorded iterations of a rank to the `Timings` of its cluster.

    Parameters
    ----------
    address
        The kernel's address for records.
    sources
        The sources of the collectives.
    world_size
        Number of ranks in the ring.
    cpu_ns
        Returns the CPU time of the backend's threads so far; 0 if unknown.
    logged
        Values that cells log with their iterations; sent before the records of these iterations.
    """

    def __init__(
        self,
        address: Address,
        sources: Sequence[CollectiveSource],
        world_size: int,
        cpu_ns: Callable[[], int] = lambda: 0,
        logged: LoggedQueue | None = None,
    ) -> None:
        self._logged = logged or LoggedQueue()
        self._waiting: deque[Recorded] = deque()
        self._asked = False
        self._sent = (0, 0)
        self._dropped = 0
        self._outbox = Outbox(address, delay_s=DELAY_S, name="timings")
        self._packer = Packer(
            sources, world_size, lambda: self._dropped, cpu_ns, lambda: self._outbox.is_closing
        )
        self._packing: list[Recorded] = []
        """Items that were removed from `_waiting`, but are not counted in `_sent` yet."""
        self._moving = threading.Lock()
        """Held while the outbox's thread moves items, so that `records` counts each item once."""

    @property
    def dropped(self) -> int:
        """Number of iterations that were not sent."""
        return self._dropped + self._packer.failed

    def put(self, iteration: Recorded) -> None:
        """Queue an iteration without blocking; drop the oldest at `LIMIT`.

        The iteration is sent with later iterations if a GPU has not finished it yet.
        """
        if len(self._waiting) >= LIMIT:
            self._waiting.popleft()
            self._dropped += 1
        self._waiting.append(iteration)
        self._ask()

    def flush(self) -> None:
        """Wait up to 2 s until ZeroMQ has all iterations."""
        deadline = time.monotonic() + _FLUSH_S
        self._ask()  # also sends values that were logged after the last iteration
        self._outbox.flush()
        while (self._waiting or self._logged.waiting) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            self._ask()
            self._outbox.flush()

    def records(self, cell: int) -> int:
        """Return the number of a cell's records, sent or waiting for a GPU."""
        with self._moving:
            unsent = (*self._packing, *self._waiting)
            latest, sent = self._sent
        waiting = [item for item in unsent if isinstance(item, RecordedIteration)]
        return sent * (latest == cell) + sum(item.cell == cell for item in waiting)

    def separate_iterations(self, cell: int, collectives: int) -> int:
        """Return the result of `CellExchange`; 0 if some iterations are unknown."""
        with self._moving:
            if self.dropped or self._waiting or self._packing:
                return 0
        return self._packer.exchange.separate_iterations(cell, collectives)

    def close(self) -> None:
        """Send the remaining records, and stop."""
        self._outbox.close()

    def _next(self) -> Recorded | None:
        """Remove and return the first item if it is ready; drop it if CUDA raises an error."""
        while self._waiting:
            try:
                return self._waiting.popleft() if self._waiting[0].ready else None
            except RuntimeError:  # of CUDA
                self._waiting.popleft()
                self._dropped += 1
        return None

    def _count(self, cell: int | None, records: int) -> None:
        """Count the records of the latest cell."""
        latest, sent = self._sent
        if cell is not None:
            self._sent = cell, records + (sent if latest == cell else 0)

    def _ask(self) -> None:
        if not self._asked:
            self._asked = True
            self._outbox.send_later(self._take)

    def _take(self) -> list[Message]:
        """Return the messages for iterations that are ready, in the outbox's thread.

        Raises
        ------
        MemoryError
            A cell uses all memory. No item was removed, so that all are sent later.
        """
        self._asked = False
        bytearray(_MEMORY_BYTES)  # without memory, the items that are removed below would be lost
        messages: list[Message] = []
        records: list[bytes] = []
        for items in self._runs():
            packed = self._pack(items)
            with self._moving:
                self._count(items[0].cell, len(packed))
                self._packing = self._packing[len(items) :]
            for layout, record in packed:
                if layout is not None:
                    # numbers are reused: the records so far may refer to the previous layout
                    messages += _bundle(records)
                    messages.append(layout)
                    records = []
                records.append(record)
        return [*self._logged.take(), *messages, *_bundle(records)]

    def _runs(self) -> Iterator[list[Recorded]]:
        """Remove and yield the ready items, grouped by successive kind and cell."""
        while items := self._next_batch():
            for _, run in groupby(items, lambda item: (item.cell, type(item))):
                yield list(run)

    def _next_batch(self) -> list[Recorded]:
        """Remove and return the next items that are ready."""
        ready: Iterator[Recorded] = iter(self._next, None)
        with self._moving:
            self._packing = list(islice(ready, _MAX_BATCH))
            return self._packing

    def _pack(self, items: list[Recorded]) -> list[tuple[Layout | None, bytes]]:
        """Return the records of successive items of one kind and cell; count failed items."""
        try:
            return list(self._packer(items))
        except Exception:  # noqa: BLE001 - a failure must not stop later items
            self._dropped += len(items)
            self._packer.forget_layouts()  # some may be new, and were not sent
            return []


def _bundle(records: list[bytes]) -> list[Message]:
    return [Records(tuple(records))] if records else []
