"""Flow control for a cell's output: a rank waits while the kernel is too far behind."""

from __future__ import annotations

import time

TOTAL_CHARACTERS = 1 << 18
"""Limit of all ranks together; the kernel processes so much in less than a second."""
_LEAST_CHARACTERS = 1 << 14
_PATIENCE_S = 5.0
"""A kernel that confirms nothing for so long has ended, or no longer waits for the cell."""
_CHECK_S = 0.001


class SendWindow:
    """Counts what a cell has written and the kernel has not confirmed; blocks writers at a limit.

    The kernel confirms the messages for which `send` returns a number. If it does not confirm
    in time, writers no longer wait, until the next confirmation arrives. The ranks of a
    cluster share the limit.

    There is no lock: an interrupt or a MemoryError in a writer would leave it locked.
    """

    def __init__(self, world_size: int = 1) -> None:
        self._open = False
        self._answers = True
        self._written = self._sent = self._marked = self._confirmed = 0
        self.resize(world_size)

    def resize(self, world_size: int) -> None:
        """Share the limit with another number of ranks."""
        self._limit = max(TOTAL_CHARACTERS // world_size, _LEAST_CHARACTERS)

    @property
    def chunk(self) -> int:
        """Most characters of a message: the kernel processes one while others are on their way."""
        return self._limit // 4

    @property
    def full(self) -> bool:
        """Whether a writer has to wait."""
        return self._open and self._answers and self._written - self._confirmed > self._limit

    def begin(self) -> None:
        """Start to count the output of a cell."""
        self._sent = self._marked = self._confirmed = self._written = 0
        self._open = self._answers = True

    def end(self) -> None:
        """Release blocked writers once the cell's code has finished."""
        self._open = False

    def write(self, characters: int) -> None:
        """Count characters that were written."""
        self._written += characters

    def send(self, characters: int) -> int | None:
        """Count the characters of a message.

        Returns
        -------
        int or None
            Characters that the cell has sent so far, if the kernel must confirm this message.
        """
        self._sent += characters
        if self._sent - self._marked < self.chunk:
            return None
        self._marked = self._sent
        return self._sent

    def confirm(self, sent: int) -> None:
        """Note that the kernel has processed so many characters of the cell."""
        self._answers = True
        self._confirmed = max(self._confirmed, sent)

    def wait(self) -> None:
        """Wait while the window is full; may be interrupted."""
        confirmed = self._confirmed
        deadline = time.monotonic() + _PATIENCE_S
        while self.full:
            time.sleep(_CHECK_S)
            if self._confirmed != confirmed:
                confirmed = self._confirmed
                deadline = time.monotonic() + _PATIENCE_S
            elif time.monotonic() >= deadline:
                self._answers = False
