"""Sends the records of finished iterations, several in one message.

Training shares its cores with the threads that pack, encrypt and receive: each
wake-up of theirs takes more from it than a further record in the same message.
"""

from __future__ import annotations

from collections import deque

from workbench.rank.pack import Packer
from workbench.rank.recorder import Iteration
from workbench.wire import Address, Message, Outbox

DELAY_S = 0.1
"""Records of this long leave together: a live view is drawn as often."""
LIMIT = 10_000
"""Iterations kept while the kernel does not take them."""


class RecordChannel:
    """From a rank to its cluster's `Timings`.

    Parameters
    ----------
    address
        Where the timings listen.
    world_size
        Ranks in the ring.
    """

    def __init__(self, address: Address, world_size: int) -> None:
        self._waiting: deque[Iteration] = deque()
        self._lost = 0
        self._outbox = Outbox(address, delay_s=DELAY_S, name="timings")
        self._packer = Packer(world_size, lambda: self.dropped)

    @property
    def dropped(self) -> int:
        """Records that never left."""
        return self._lost + self._outbox.dropped

    def put(self, iteration: Iteration) -> None:
        """Send an iteration; never blocks. Beyond `LIMIT` the oldest is dropped."""
        if len(self._waiting) >= LIMIT:
            self._waiting.popleft()
            self._lost += 1
        self._waiting.append(iteration)
        if len(self._waiting) == 1:
            self._outbox.send_later(self._take)

    def flush(self) -> None:
        """Wait until what was put is handed to ZeroMQ."""
        self._outbox.flush()

    def close(self) -> None:
        """Send what is left, and stop."""
        self._outbox.close()

    def _take(self) -> list[Message]:
        """Called by the outbox's thread, until nothing waits: a later `put` asks for it again."""
        messages: list[Message] = []
        records: list[bytes] = []
        while self._waiting:
            iteration = self._waiting.popleft()
            try:
                layout, record = self._packer(iteration)
            except Exception:  # noqa: BLE001 - one that cannot be packed must not end the rest
                self._lost += 1
                continue
            if layout is not None:
                # numbers are used again: what was packed before belongs to the old layout
                messages += _bundle(records)
                messages.append(layout)
                records = []
            records.append(record)
        return messages + _bundle(records)


def _bundle(records: list[bytes]) -> list[Message]:
    return [Message("records", {}, tuple(records))] if records else []
