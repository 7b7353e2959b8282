"""One sampler for all subscribers."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from workbench.resources.counters import Sampler

log = logging.getLogger(__name__)

VERSION = 1
"""Version of the messages."""


class LiveMessage:
    """One sample, shared by all listeners.

    Parameters
    ----------
    plain
        The sample as JSON values, without the paths of notebooks.
    notebooks
        The path of each kernel's notebook, by the kernel's id.
    """

    def __init__(self, plain: dict[str, Any], notebooks: Mapping[str, str]) -> None:
        self.plain = plain
        self._notebooks = notebooks
        self._texts: dict[bool, str] = {}

    def text(self, *, notebooks: bool) -> str:
        """Return the JSON text, with or without the paths of notebooks; it is cached."""
        notebooks = notebooks and bool(self._notebooks)
        if notebooks not in self._texts:
            self._texts[notebooks] = json.dumps(self._named() if notebooks else self.plain)
        return self._texts[notebooks]

    def _named(self) -> dict[str, Any]:
        named = [
            {**one, "notebook": self._notebooks.get(one["kernel_id"])} if one["kernel_id"] else one
            for one in self.plain["processes"]
        ]
        return {**self.plain, "processes": named}


Listener: TypeAlias = Callable[[LiveMessage], object]


class LiveFeed:
    """Samples this VM in a thread while there are listeners, and calls all of them.

    The thread starts with the first listener and ends with the last one.

    Parameters
    ----------
    make_sampler
        Makes a sampler; called in the thread, once per start.
    interval_s
        Seconds from one sample to the next.
    notebooks
        Returns the path of each kernel's notebook, by the kernel's id; called in the
        thread, once for each sample with kernels.
    """

    def __init__(
        self,
        make_sampler: Callable[[], Sampler],
        interval_s: float = 1.0,
        notebooks: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._make_sampler = make_sampler
        self._interval_s = interval_s
        self._notebooks = notebooks
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []
        self._latest: LiveMessage | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    @property
    def latest(self) -> LiveMessage | None:
        """The newest message; None without listeners, or before the first message."""
        return self._latest

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every message, and at once with the latest one.

        Parameters
        ----------
        listener
            Called from the sampler's thread with a `LiveMessage`; must not block. If it
            raises RuntimeError (its event loop is closed), it is unsubscribed.

        Returns
        -------
        callable
            Function that ends the subscription; may be called more than once.
        """
        with self._lock:
            self._listeners.append(listener)
            if len(self._listeners) == 1:
                self._start()
            latest = self._latest
        if latest is not None:
            self._notify(listener, latest)
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
            daemon=True,  # a driver that hangs must not keep the server alive
        )
        self._thread.start()

    def _run(self, stop: threading.Event, previous: threading.Thread | None) -> None:
        if previous is not None:
            previous.join()  # never two samplers at once
        while not stop.is_set():
            try:
                with self._make_sampler() as sampler:
                    self._sample(sampler, stop)
            except Exception:  # opening the devices may succeed later
                log.exception("the sampler did not start; retrying in %g s", self._interval_s)
                stop.wait(self._interval_s)

    def _sample(self, sampler: Sampler, stop: threading.Event) -> None:
        due = time.monotonic()
        while not stop.is_set():
            self._publish(sampler, stop)
            due = max(due + self._interval_s, time.monotonic())
            stop.wait(due - time.monotonic())

    def _publish(self, sampler: Sampler, stop: threading.Event) -> None:
        try:
            plain = sampler.sample().to_plain()
        except Exception:  # a sample that fails must not end the feed
            log.exception("this VM could not be sampled; retrying in %g s", self._interval_s)
            return
        plain = {"version": VERSION, "interval_s": self._interval_s, **plain}
        message = LiveMessage(plain, self._notebooks() if _has_kernels(plain) else {})
        with self._lock:
            if stop.is_set():
                return
            self._latest = message
            listeners = list(self._listeners)
        for listener in listeners:
            self._notify(listener, message)

    def _notify(self, listener: Listener, message: LiveMessage) -> None:
        try:
            listener(message)
        except RuntimeError:  # its event loop is closed: the server is shutting down
            self._unsubscribe(listener)


def _has_kernels(plain: dict[str, Any]) -> bool:
    processes = plain.get("processes")
    return isinstance(processes, list) and any(one["kernel_id"] for one in processes)
