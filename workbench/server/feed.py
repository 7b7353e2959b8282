"""Feed of live samples: one sampler for all listeners, with the notebook of each kernel."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import Any, TypeAlias

from workbench.resources.counters import Sampler

log = logging.getLogger(__name__)

NOTEBOOKS_WAIT_S = 0.25
"""Time limit for the event loop to answer; after it the last answer is used."""
VERSION = 1
"""Version of the messages."""


class Notebooks:
    """Queries the session manager on its event loop from the sampler's thread."""

    def __init__(self, sessions: Any) -> None:
        self._sessions = sessions
        self._loop: asyncio.AbstractEventLoop | None = None
        self._query: Future[dict[str, str]] | None = None
        self._paths: dict[str, str] = {}
        self._warned = False

    def use(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the event loop of the session manager."""
        self._loop = loop

    def paths(self) -> Mapping[str, str]:
        """Return the path of each kernel's notebook, by the kernel's id.

        This waits for at most `NOTEBOOKS_WAIT_S`, and starts no second query while one is
        pending. Call it from one thread at a time, and not from the event loop's thread.
        """
        if self._query is None:
            self._start_query()
        if self._query is not None and wait([self._query], NOTEBOOKS_WAIT_S).done:
            query, self._query = self._query, None
            try:
                self._paths = query.result()
                self._warned = False
            except Exception:  # any, as the session manager may be another implementation
                self._paths = {}
                if not self._warned:  # once, as a warning every second would fill the log
                    log.warning("cannot list the notebooks of kernels", exc_info=True)
                self._warned = True
        return self._paths

    def _start_query(self) -> None:
        if self._loop is None or self._loop.is_closed():
            return
        listing = self._list()
        try:
            self._query = asyncio.run_coroutine_threadsafe(listing, self._loop)
        except RuntimeError:  # closed meanwhile: the server is shutting down
            listing.close()

    async def _list(self) -> dict[str, str]:
        return {
            one["kernel"]["id"]: one["path"]
            for one in await self._sessions.list_sessions()
            if one.get("type") == "notebook"  # a console has a path too, but no file
        }


class LiveMessage:
    """One sample, shared by all listeners.

    `plain` has no paths of notebooks; `notebooks` has them by the kernels' ids.
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
        """Call `listener` with every message, and immediately with the latest one.

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
            except Exception:  # opening the devices may succeed on a later attempt
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
