"""The background thread that sends a view's messages at a limited rate."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable

from workbench.widgets.messages import Composer, ViewMessage
from workbench.widgets.source import TimingSource

_log = logging.getLogger(__name__)

MIN_S = 0.05
"""Shortest interval between messages.

Ranks send eleven times a second. So records that arrive after the records of other ranks are sent
soon, and do not delay the next message.
"""
SHARE = 0.2
"""Maximum share of a core for messages; with thousands of ranks, they are sent less often."""
RECENT = 0.1
"""Weight of the newest message in the moving average of the cost of a message."""
MAX_S = 1.0
"""Longest interval between messages while rows arrive."""
GATHER_S = 0.005
"""Delay after the first record, because the records of all ranks arrive almost
simultaneously and should be sent together."""
POLL_S = 0.125
"""Poll interval for a source that does not report rows."""
IDLE_POLL_S = 1.0
"""Poll interval after the end of a run."""


class Stream:
    """A background thread that sends a view's messages until it is closed.

    Rows are sent when the source reports them, at most once every `MIN_S`. The thread
    also polls, because a source may not report each row.

    Parameters
    ----------
    source
        The timings to send.
    send
        Called with each message, from the background thread or from the caller of `flush`.
    tick
        Called from the background thread after each round, for slower work.
    """

    def __init__(
        self,
        source: TimingSource,
        send: Callable[[ViewMessage], None],
        tick: Callable[[], None],
    ) -> None:
        self._source = source
        self._composer = Composer(source)
        self._send = send
        self._tick = tick
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._closed = threading.Event()
        self._unsubscribe = source.subscribe(self._changed.set)
        self._thread = threading.Thread(target=self._run, name="workbench-live", daemon=True)

    @property
    def seq(self) -> int:
        """Number of the last message."""
        return self._composer.seq

    def start(self) -> None:
        """Start the background thread."""
        # A thread inside NumPy at interpreter shutdown would abort the process.
        atexit.register(self.close)
        self._thread.start()

    def flush(self) -> None:
        """Send the next message, if any, from the calling thread."""
        with self._lock:
            message = self._composer.next(time.monotonic())
            if message is not None:
                self._send(message)

    def close(self) -> None:
        """Stop sending, and wait until the thread has ended."""
        atexit.unregister(self.close)
        self._unsubscribe()
        self._closed.set()
        self._changed.set()
        _log.debug("stream of a live view: closed after %d messages", self.seq)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        mean_cpu_s = 0.0
        while not self._closed.is_set():
            self._changed.clear()
            began = time.monotonic()
            cpu_began = time.thread_time()
            self.flush()
            self._tick()
            # The moving average changes slowly, so that a full window, once a second, delays no
            # message.
            mean_cpu_s += RECENT * (time.thread_time() - cpu_began - mean_cpu_s)
            ended = self._source.status().state == "ended"
            self._changed.wait(IDLE_POLL_S if ended else POLL_S)
            wait_s = began + max(MIN_S, min(mean_cpu_s / SHARE, MAX_S)) - time.monotonic()
            self._closed.wait(max(GATHER_S, wait_s))
