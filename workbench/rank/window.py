"""Flow control for a cell's output: a rank waits while the kernel is too far behind."""

from __future__ import annotations

import time

TOTAL_CHARACTERS = 1 << 18
"""Limit of all ranks together; the kernel processes this size in less than a second."""
_MIN_CHARACTERS = 1 << 14
_PATIENCE_S = 5.0
"""A kernel that confirms nothing for this time has ended, or no longer waits for the cell."""
_CHECK_S = 0.001


class SendWindow:
    """Counts unconfirmed output of a cell, and blocks its writers at a limit.

    The kernel confirms each message that has a number from `send`. If it does not confirm in
    time, writers do not wait again until the next confirmation. The ranks of a cluster share the
    limit. There is no lock: an interrupt or a MemoryError in a writer would leave it locked.

    Examples
    --------
    >>> window = SendWindow(world_size=2)
    >>> window.begin()
    >>> window.write(200_000)
    >>> window.full
    True
    >>> window.send(200_000)
    200000
    >>> window.confirm(200_000)
    >>> window.full
    False
    """

    def __init__(self, world_size: int = 1) -> None:
        self._open = False
        self._answers = True
        self._written = self._sent = self._marked = self._confirmed = 0
        self.resize(world_size)

    def resize(self, world_size: int) -> None:
        """Share the limit with another number of ranks."""
        self._limit = max(TOTAL_CHARACTERS // world_size, _MIN_CHARACTERS)

    @property
    def chunk(self) -> int:
        """Maximum characters of a message: the kernel processes one while others travel."""
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
        """Release blocked writers once the cell's code has ended."""
        self._open = False

    def write(self, characters: int) -> None:
        """Count written characters."""
        self._written += characters

    def send(self, characters: int) -> int | None:
        """Count the characters of a message.

        Returns
        -------
        int or None
            Number of characters that the cell has sent so far; None if the kernel need not
            confirm this message.
        """
        self._sent += characters
        if self._sent - self._marked < self.chunk:
            return None
        self._marked = self._sent
        return self._sent

    def confirm(self, sent: int) -> None:
        """Note that the kernel has processed `sent` characters of the cell."""
        self._answers = True
        self._confirmed = max(self._confirmed, sent)

    def wait(self) -> None:
        """Block while the window is full; an interrupt may end this."""
        confirmed = self._confirmed
        deadline = time.monotonic() + _PATIENCE_S
        while self.full:
            time.sleep(_CHECK_S)
            if self._confirmed != confirmed:
                confirmed = self._confirmed
                deadline = time.monotonic() + _PATIENCE_S
            elif time.monotonic() >= deadline:
                self._answers = False
