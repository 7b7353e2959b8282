"""Snapshots and samples of a VM, taken in threads so that a blocked driver delays no rank."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Protocol

from workbench.resources.unknown import Unknown

_FRESH_S = 0.5
"""A younger sample is returned again: rates over shorter intervals would be noise."""


class Source(Protocol):
    """Provides the answers of an `OnDemandWorker`."""

    def take(self) -> Any:
        """Return one answer as JSON values."""

    def close(self) -> None:
        """Free resources."""


class Samples:
    """Samples of this VM; several requests share a sampler."""

    def __init__(self) -> None:
        from workbench.resources.counters import Sampler

        self._sampler = Sampler()
        self._newest: Any = None
        self._taken = float("-inf")

    def take(self) -> Any:
        """See `Source`."""
        if time.monotonic() - self._taken >= _FRESH_S:
            self._newest = self._sampler.sample().to_plain()
            self._taken = time.monotonic()
        return self._newest

    def close(self) -> None:
        """See `Source`."""
        self._sampler.close()


class Snapshots:
    """Snapshots of this VM."""

    def take(self) -> Any:
        """See `Source`."""
        from workbench.resources import take_snapshot

        return take_snapshot().to_plain()

    def close(self) -> None:
        """See `Source`."""


class KernelLogs:
    """Lines of the kernel's log of this VM."""

    def take(self) -> Any:
        """See `Source`."""
        from workbench.resources.kernel_log import read_kernel_log

        return _plain(read_kernel_log())

    def close(self) -> None:
        """See `Source`."""


class RasReports:
    """What NCCL's RAS subsystem on this VM reports."""

    def take(self) -> Any:
        """See `Source`."""
        from workbench.resources.nccl_ras import read_ras

        return _plain(read_ras())

    def close(self) -> None:
        """See `Source`."""


def _plain(record: Any) -> dict[str, Any]:
    """Return a record as JSON values; raise if it is unknown, as a worker answers with errors."""
    if isinstance(record, Unknown):
        raise NotKnown(record.reason)
    return asdict(record)


class NotKnown(Exception):
    """The answer to a question is unknown; the message says why."""


class OnDemandWorker:
    """Answers one kind of question in a thread, which ends after a time without questions.

    Parameters
    ----------
    make
        Creates the source; called in each new thread.
    report
        Called in the thread with the id of a question and its answer, as
        ``{"answer": ...}`` or ``{"error": ...}``.
    idle_s
        The thread ends after so many seconds without a question.
    """

    def __init__(
        self,
        make: Callable[[], Source],
        report: Callable[[Any, dict[str, Any]], None],
        idle_s: float = 10.0,
    ) -> None:
        self._make = make
        self._report = report
        self._idle_s = idle_s
        self._changed = threading.Condition()
        self._asked: deque[Any] = deque()
        self._paused = False
        self._thread: threading.Thread | None = None

    def ask(self, question: Any) -> None:
        """Queue a question."""
        with self._changed:
            self._asked.append(question)
            self._changed.notify()
            self._begin()

    def pause(self, limit_s: float) -> None:
        """End the thread before a fork, waiting for it up to `limit_s`."""
        with self._changed:
            self._paused = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(limit_s)

    def resume(self) -> None:
        """Continue after `pause`, with the questions that were queued meanwhile."""
        with self._changed:
            self._paused = False
            self._begin()

    def _begin(self) -> None:
        if self._asked and not self._paused and self._thread is None:
            # a daemon thread: a blocked driver must not prevent the agent from ending
            self._thread = threading.Thread(
                target=self._run, name="workbench-on-demand", daemon=True
            )
            self._thread.start()

    def _run(self) -> None:
        source: Source | None = None
        while (question := self._next()) is not None:
            try:
                source = source or self._make()
                answer = {"answer": source.take()}
            except NotKnown as error:
                answer = {"error": str(error)}
            except Exception as error:  # noqa: BLE001 - the error is the answer
                answer = {"error": f"{type(error).__name__}: {error}"}
            self._report(question, answer)
        try:
            if source is not None:
                source.close()
        finally:
            with self._changed:
                self._thread = None
                self._begin()  # a question may have been queued meanwhile

    def _next(self) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: self._asked or self._paused, self._idle_s)
            return None if self._paused or not self._asked else self._asked.popleft()
