"""Feed of live samples: all listeners share one sampler, which adds each kernel's notebook."""

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

_log = logging.getLogger(__name__)

NOTEBOOKS_WAIT_S = 0.25
"""Seconds to wait for the event loop's answer. After that, the last answer is used."""
VERSION = 1
"""Version of the messages."""


class Notebooks:
    """Source of notebook paths, which queries the session manager from the sampler's thread."""

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

        This method waits for at most `NOTEBOOKS_WAIT_S`. While a query is pending, it starts no
        second query. Call it from one thread at a time, and not from the event loop's thread.
        """
        if self._query is None:
            self._start_query()
        if self._query is not None and wait([self._query], NOTEBOOKS_WAIT_S).done:
            query = self._query
            self._query = None
            try:
                self._paths = query.result()
                self._warned = False
            except Exception:  # noqa: BLE001 - another session manager may raise any
                self._paths = {}
                if not self._warned:  # a warning every second would fill the log
                    _log.warning("cannot list the notebooks of kernels", exc_info=True)
                self._warned = True
        return self._paths

    def _start_query(self) -> None:
        if self._loop is None or self._loop.is_closed():
            return
        listing = self._list()
        try:
            self._query = asyncio.run_coroutine_threadsafe(listing, self._loop)
        except RuntimeError:  # the loop was just closed, because the server is shutting down
            listing.close()

    async def _list(self) -> dict[str, str]:
        return {
            session["kernel"]["id"]: session["path"]
            for session in await self._sessions.list_sessions()
            if session.get("type") == "notebook"  # a console has a path too, but no file
        }


class LiveMessage:
    """One sample, shared by all listeners.

    Parameters
    ----------
    plain
        The sample as JSON values, without paths of notebooks.
    notebooks
        The path of each kernel's notebook, by the kernel's id.

    Examples
    --------
    >>> sample = {"processes": [{"pid": 7, "kernel_id": "k1"}]}
    >>> message = LiveMessage(sample, {"k1": "train.ipynb"})
    >>> message.text(notebooks=True)
    '{"processes": [{"pid": 7, "kernel_id": "k1", "notebook": "train.ipynb"}]}'
    >>> message.text(notebooks=False)
    '{"processes": [{"pid": 7, "kernel_id": "k1"}]}'
    """

    def __init__(self, plain: dict[str, Any], notebooks: Mapping[str, str]) -> None:
        self.plain = plain
        self._notebooks = notebooks
        self._texts: dict[bool, str] = {}

    def text(self, *, notebooks: bool) -> str:
        """Return the JSON text, with or without the paths of notebooks; it is cached."""
        notebooks = notebooks and bool(self._notebooks)
        if notebooks not in self._texts:
            self._texts[notebooks] = json.dumps(self._with_notebooks() if notebooks else self.plain)
        return self._texts[notebooks]

    def _with_notebooks(self) -> dict[str, Any]:
        processes = [
            {**process, "notebook": self._notebooks.get(process["kernel_id"])}
            if process["kernel_id"]
            else process
            for process in self.plain["processes"]
        ]
        return {**self.plain, "processes": processes}


Listener: TypeAlias = Callable[[LiveMessage], object]


class LiveFeed:
    """Sampler of this VM in a thread that calls all listeners with each sample.

    The thread starts with the first listener and ends with the last one.

    Parameters
    ----------
    make_sampler
        Returns a new sampler. It is called in the thread, once per start.
    interval_s
        Seconds from one sample to the next.
    notebooks
        Returns the path of each kernel's notebook, by the kernel's id. It is called in the
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
            Called from the sampler's thread with a `LiveMessage`; it must not block. If it
            raises RuntimeError (its event loop is closed), it is unsubscribed.

        Returns
        -------
        callable
            Function that ends the subscription. It may be called more than once.
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
            previous.join()  # two samplers must not run at the same time
        _log.debug("sampling of this VM started, every %g s", self._interval_s)
        while not stop.is_set():
            try:
                with self._make_sampler() as sampler:
                    self._sample(sampler, stop)
            except Exception:  # noqa: BLE001 - a later attempt may succeed
                _log.exception("the sampler did not start; retrying in %g s", self._interval_s)
                stop.wait(self._interval_s)
        _log.debug("sampling of this VM ended: no listener is subscribed")

    def _sample(self, sampler: Sampler, stop: threading.Event) -> None:
        due = time.monotonic()
        while not stop.is_set():
            self._publish(sampler, stop)
            due = max(due + self._interval_s, time.monotonic())
            stop.wait(due - time.monotonic())

    def _publish(self, sampler: Sampler, stop: threading.Event) -> None:
        try:
            plain = sampler.sample().to_plain()
        except Exception:  # noqa: BLE001 - a failed sample must not end the feed
            _log.exception("this VM could not be sampled; retrying in %g s", self._interval_s)
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
        except RuntimeError:  # its event loop is closed, because the server is shutting down
            self._unsubscribe(listener)


def _has_kernels(plain: dict[str, Any]) -> bool:
    processes = plain.get("processes")
    return isinstance(processes, list) and any(process["kernel_id"] for process in processes)
