"""Wake a thread that polls sockets."""

from __future__ import annotations

import os


class Wakeup:
    """A pipe that wakes the thread that polls it; `fd` is the descriptor to poll."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write, False)

    def set(self) -> None:
        """Wake the thread. May be called in any thread."""
        try:
            os.write(self._write, b"x")
        except (BlockingIOError, OSError):
            return  # the pipe is full, as the thread is awake already, or it is closed

    def clear(self) -> None:
        """Reset the wakeup. Called in the thread that polls."""
        try:
            os.read(self.fd, 4096)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Free the pipe."""
        # A later `set` must not write to a file that reuses this descriptor.
        write = self._write
        self._write = -1
        os.close(self.fd)
        os.close(write)
