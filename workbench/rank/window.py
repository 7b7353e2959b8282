"""A bound on the output that a rank is ahead of the kernel."""

from __future__ import annotations

import threading

TOTAL_CHARACTERS = 1 << 18
"""How far all ranks of a cluster may be ahead together: the kernel takes it in within a second."""
_LEAST_CHARACTERS = 1 << 14
_PATIENCE_S = 5.0
"""A kernel that takes nothing for this long is gone, or has left the rank to run on."""


class Window:
    """What a cell has written and the kernel has not taken yet: writers wait where it is full.

    The rank marks some of its messages, and the kernel answers these once it
    has taken them. A cell that writes little has no marked message. A kernel
    that does not answer is waited for once, until it answers again.

    Parameters
    ----------
    world_size
        Ranks in the cluster, which share the bound.
    """

    def __init__(self, world_size: int = 1) -> None:
        self._room = threading.Condition()
        self._open = False
        self._answers = True
        self._written = self._sent = self._marked = self._taken = 0
        self.resize(world_size)

    def resize(self, world_size: int) -> None:
        """Share the bound with a different number of ranks."""
        self._limit = max(TOTAL_CHARACTERS // world_size, _LEAST_CHARACTERS)

    @property
    def chunk(self) -> int:
        """Characters that a message has at most, so that some are taken while others are sent."""
        return self._limit // 4

    @property
    def full(self) -> bool:
        """Whether a writer has to wait."""
        return self._open and self._answers and self._written - self._taken > self._limit

    def begin(self) -> None:
        """A cell begins."""
        with self._room:
            self._open = self._answers = True
            self._sent = self._marked = self._taken = 0
            self._written = 0

    def end(self) -> None:
        """The cell's code has ended: nobody waits any more."""
        with self._room:
            self._open = False
            self._room.notify_all()

    def write(self, characters: int) -> None:
        """Count what was written."""
        self._written += characters

    def send(self, characters: int) -> dict[str, int]:
        """Count what is sent in one message, and return the mark for it; often there is none."""
        self._sent += characters
        if self._sent - self._marked < self.chunk:
            return {}
        self._marked = self._sent
        return {"written": self._sent}

    def take(self, written: int) -> None:
        """The kernel has taken the message with this mark, and all before it."""
        with self._room:
            self._answers = True
            self._taken = max(self._taken, written)
            self._room.notify_all()

    def wait(self) -> None:
        """Wait while it is full; an interrupt ends that."""
        with self._room:
            while self.full:
                if not self._room.wait(_PATIENCE_S):
                    self._answers = False
