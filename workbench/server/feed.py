"""One sampler for all who look."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from typing import TypeAlias

from workbench.resources.counters import Sampler

log = logging.getLogger(__name__)

VERSION = 1
"""Of the messages."""

Listener: TypeAlias = Callable[[str], object]


class LiveFeed:
    """Samples this VM in a thread while there are listeners, and tells them all.

    The thread starts with the first listener and ends with the last one.

    Parameters
    ----------
    make_sampler
        Makes a sampler; called in the thread, once per start.
    interval_s
        Seconds from one sample to the next.
    """

    def __init__(self, make_sampler: Callable[[], Sampler], interval_s: float = 1.0) -> None:
        self._make_sampler = make_sampler
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []
        self._latest: str | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every message, and at once with the last one there is.

        Parameters
        ----------
        listener
            Called from the sampler's thread with JSON text; must not block. One that
            raises RuntimeError (its event loop is closed) is called no more.

        Returns
        -------
        callable
            Ends the subscription; may be called more than once.
        """
        with self._lock:
            self._listeners.append(listener)
            if len(self._listeners) == 1:
                self._start()
            latest = self._latest
        if latest is not None:
            self._tell(listener, latest)
        return lambda: self._unsubscribe(listener)

    def _unsubscribe(self, listener: Listener) -> None:
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)
            if not self._listeners:
                self._stop.set()
                self._latest = None

    def _start(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run,
            args=(self._stop, self._thread),
            name="workbench-sampler",
            daemon=True,  # a driver that hangs must not keep the server from ending
        )
        self._thread.start()

    def _run(self, stop: threading.Event, previous: threading.Thread | None) -> None:
        if previous is not None:
            previous.join()  # never two samplers at once
        with self._make_sampler() as sampler:
            due = time.monotonic()
            while not stop.is_set():
                self._publish(sampler, stop)
                due = max(due + self._interval_s, time.monotonic())
                stop.wait(due - time.monotonic())

    def _publish(self, sampler: Sampler, stop: threading.Event) -> None:
        try:
            sample = sampler.sample().to_plain()
        except Exception:  # one sample that fails must not end the feed for good
            log.exception("this VM could not be sampled; trying again in %g s", self._interval_s)
            return
        message = json.dumps({"version": VERSION, "interval_s": self._interval_s, **sample})
        with self._lock:
            if stop.is_set():
                return
            self._latest = message
            listeners = list(self._listeners)
        for listener in listeners:
            self._tell(listener, message)

    def _tell(self, listener: Listener, message: str) -> None:
        try:
            listener(message)
        except RuntimeError:  # its event loop is closed: the server is going down
            self._unsubscribe(listener)
