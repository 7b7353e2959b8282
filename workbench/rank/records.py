"""Sends the records of finished iterations, several in one message.

Training shares its cores with the threads that pack, encrypt and receive: each
wake-up of theirs takes more from it than a further record in the same message.
"""

from __future__ import annotations

import time
from collections import deque

from workbench.rank.pack import Packer
from workbench.rank.recorder import Iteration, Outside
from workbench.wire import Address, Message, Outbox

DELAY_S = 0.09
"""Records of this long leave together: a live view is drawn as often."""
LIMIT = 10_000
"""Iterations kept while the kernel does not take them."""
_FLUSH_S = 2.0
_POLL_S = 0.01


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
        self._waiting: deque[Iteration | Outside] = deque()
        self._asked = False
        self._lost = 0
        self._outbox = Outbox(address, delay_s=DELAY_S, name="timings")
        self._packer = Packer(world_size, lambda: self.dropped)

    @property
    def dropped(self) -> int:
        """Records that never left."""
        return self._lost + self._outbox.dropped

    def put(self, iteration: Iteration | Outside) -> None:
        """Send an iteration; never blocks. Beyond `LIMIT` the oldest is dropped.

        One that a GPU is still at leaves with those that follow.
        """
        if len(self._waiting) >= LIMIT:
            self._waiting.popleft()
            self._lost += 1
        self._waiting.append(iteration)
        self._ask()

    def flush(self) -> None:
        """Wait until what was put is handed to ZeroMQ."""
        deadline = time.monotonic() + _FLUSH_S
        self._outbox.flush()
        while self._waiting and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            self._ask()
            self._outbox.flush()

    def close(self) -> None:
        """Send what is left, and stop."""
        self._outbox.close()

    def _ask(self) -> None:
        if not self._asked:
            self._asked = True
            self._outbox.send_later(self._take)

    def _take(self) -> list[Message]:
        """Called by the outbox's thread: what can be packed by now."""
        self._asked = False
        messages: list[Message] = []
        records: list[bytes] = []
        while self._waiting and self._waiting[0].ready:
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
