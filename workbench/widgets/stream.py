"""The thread that sends a view's messages, by time and never by acknowledgement."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable

from workbench.widgets.messages import Composer, Message
from workbench.widgets.source import TimingSource

LEAST_S = 0.08
"""Twelve messages a second at most; ranks send eleven times a second."""
GATHER_S = 0.005
"""The ranks' records come at the same time, nearly: this long after the first
of them they leave together."""
LOOK_S = 0.125
"""A source that calls for no row is looked at this often."""
REST_S = 1.0
"""After a run's end it is looked at this often."""


class Stream:
    """Sends what a source has to tell, from a thread of its own, until closed.

    Rows leave as they come where the source calls for them, but never faster than
    `LEAST_S`. It looks by itself as well, so that a source need not call for each row.

    Parameters
    ----------
    source
        What to tell about.
    send
        Called with each message, from this thread or from the caller of `flush`.
    tick
        Called after each round, from this thread: the place for slower work.
    """

    def __init__(
        self,
        source: TimingSource,
        send: Callable[[Message], None],
        tick: Callable[[], None],
    ) -> None:
        self._source = source
        self._composer = Composer(source)
        self._send = send
        self._tick = tick
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._closed = threading.Event()
        self._unsubscribe = source.subscribe(self._news.set)
        self._thread = threading.Thread(target=self._run, name="workbench-live", daemon=True)

    @property
    def seq(self) -> int:
        """Number of the last message."""
        return self._composer.seq

    def start(self) -> None:
        """Begin to send."""
        # a thread that is in NumPy when the interpreter ends would abort the process
        atexit.register(self.close)
        self._thread.start()

    def flush(self) -> None:
        """Send what there is to tell now, from the calling thread."""
        with self._lock:
            message = self._composer.next(time.monotonic())
            if message is not None:
                self._send(message)

    def close(self) -> None:
        """Send nothing more; returns once the thread has ended."""
        atexit.unregister(self.close)
        self._unsubscribe()
        self._closed.set()
        self._news.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._closed.is_set():
            self._news.clear()
            began = time.monotonic()
            self.flush()
            self._tick()
            self._news.wait(REST_S if self._source.status().state == "ended" else LOOK_S)
            rest = began + LEAST_S - time.monotonic()
            self._closed.wait(max(GATHER_S, rest))
