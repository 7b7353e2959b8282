"""Wake a thread that polls sockets, or a thread that waits for an event."""

from __future__ import annotations

import os
from queue import Empty, SimpleQueue


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
            return  # the pipe is full, so the thread is awake already, or the pipe is closed

    def clear(self) -> None:
        """Reset the wakeup. Called in the thread that polls."""
        try:
            os.read(self.fd, 4096)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Free the pipe."""
        # The descriptor is cleared before it is closed: a later `set` must not write to a file that
        # reuses its number.
        write = self._write
        self._write = -1
        os.close(self.fd)
        os.close(write)


class SignalSafeEvent:
    """An event for a thread in which an exception may be raised anywhere in `wait` or `set`.

    `threading.Event` and `threading.Condition` are written in Python. A KeyboardInterrupt, or a
    MemoryError in a process without memory, can leave their lock locked, and every thread that
    then uses the event waits forever. `queue.SimpleQueue` is written in C for such cases. Only one
    thread waits; any thread may call `set`.

    Examples
    --------
    >>> event = SignalSafeEvent()
    >>> event.set()
    >>> event.wait(timeout_s=1.0), event.wait(timeout_s=0.0)
    (True, False)
    """

    def __init__(self) -> None:
        self._pending: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """End the current `wait`; without a current `wait`, the next call."""
        self._pending.put(None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the event is set, and reset it; return False after `timeout_s` seconds."""
        try:
            self._pending.get(timeout=timeout_s)
            while not self._pending.empty():
                self._pending.get_nowait()
        except Empty:
            return False
        return True
