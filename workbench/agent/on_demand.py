"""Take snapshots and samples of a VM in threads, so that a blocked driver delays no rank."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Protocol

from workbench.resources.unknown import Unknown

_log = logging.getLogger(__name__)

_MAX_SAMPLE_AGE_S = 0.5
"""A sample up to this age is returned again, because rates over shorter intervals are noise."""


class AnswerSource(Protocol):
    """The interface through which an `OnDemandWorker` gets its answers."""

    def take(self) -> Any:
        """Return one answer as JSON values."""

    def close(self) -> None:
        """Free resources."""


class Samples:
    """Takes samples of this VM. All requests share one sampler."""

    def __init__(self) -> None:
        from workbench.resources.counters import Sampler

        self._sampler = Sampler()
        self._newest: Any = None
        self._sampled_s = float("-inf")

    def take(self) -> Any:
        """See `AnswerSource`."""
        if time.monotonic() - self._sampled_s >= _MAX_SAMPLE_AGE_S:
            self._newest = self._sampler.sample().to_plain()
            self._sampled_s = time.monotonic()
        return self._newest

    def close(self) -> None:
        """See `AnswerSource`."""
        self._sampler.close()


class Snapshots:
    """Takes snapshots of this VM."""

    def take(self) -> Any:
        """See `AnswerSource`."""
        from workbench.resources import take_snapshot

        return take_snapshot().to_plain()

    def close(self) -> None:
        """See `AnswerSource`."""


class KernelLogs:
    """Reads the log of this VM's Linux kernel."""

    def take(self) -> Any:
        """See `AnswerSource`."""
        from workbench.resources.kernel_log import read_kernel_log

        return _plain(read_kernel_log())

    def close(self) -> None:
        """See `AnswerSource`."""


class RasReports:
    """Reads the reports of NCCL's RAS subsystem on this VM."""

    def take(self) -> Any:
        """See `AnswerSource`."""
        from workbench.resources.nccl_ras import read_ras

        return _plain(read_ras())

    def close(self) -> None:
        """See `AnswerSource`."""


def _plain(record: Any) -> dict[str, Any]:
    """Return a record as JSON values.

    Raises
    ------
    AnswerUnknown
        The record is `Unknown`. The worker then answers with the reason.
    """
    if isinstance(record, Unknown):
        raise AnswerUnknown(record.reason)
    return asdict(record)


class AnswerUnknown(Exception):
    """The answer to a question is unknown. The message says why."""


class OnDemandWorker:
    """Answers one kind of question in a thread that ends after an idle time.

    Parameters
    ----------
    make
        Creates the source of the answers. Called in each new thread.
    report
        Called in the thread with the id of a question and its answer, as
        ``{"answer": ...}`` or ``{"error": ...}``.
    idle_s
        The thread ends after this many seconds without a question.

    Examples
    --------
    >>> import queue
    >>> class Clock:
    ...     def take(self):
    ...         return "noon"
    ...     def close(self):
    ...         pass
    >>> answers = queue.Queue()
    >>> worker = OnDemandWorker(Clock, lambda *answer: answers.put(answer), idle_s=0.1)
    >>> worker.ask(7)
    >>> answers.get(timeout=10)
    (7, {'answer': 'noon'})
    """

    def __init__(
        self,
        make: Callable[[], AnswerSource],
        report: Callable[[Any, dict[str, Any]], None],
        idle_s: float = 10.0,
    ) -> None:
        self._make = make
        self._report = report
        self._idle_s = idle_s
        self._changed = threading.Condition()
        self._questions: deque[Any] = deque()
        self._paused = False
        self._thread: threading.Thread | None = None

    def ask(self, question: Any) -> None:
        """Queue a question."""
        with self._changed:
            self._questions.append(question)
            self._changed.notify()
            self._start_if_needed()

    def pause(self, limit_s: float) -> None:
        """End the thread before a fork, waiting for it up to `limit_s`."""
        with self._changed:
            self._paused = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(limit_s)

    def resume(self) -> None:
        """Continue after `pause`, with the questions that were queued during the pause."""
        with self._changed:
            self._paused = False
            self._start_if_needed()

    def _start_if_needed(self) -> None:
        if self._questions and not self._paused and self._thread is None:
            # The thread is a daemon, because a blocked driver must not keep the agent running.
            self._thread = threading.Thread(
                target=self._run, name="workbench-on-demand", daemon=True
            )
            self._thread.start()

    def _run(self) -> None:
        source: AnswerSource | None = None
        while (question := self._next()) is not None:
            try:
                source = source or self._make()
                answer = {"answer": source.take()}
            except AnswerUnknown as error:
                answer = {"error": str(error)}
            except Exception as error:  # noqa: BLE001 - the error is the answer
                _log.debug("%s cannot answer", type(source).__name__, exc_info=True)
                answer = {"error": f"{type(error).__name__}: {error}"}
            self._report(question, answer)
        try:
            if source is not None:
                source.close()
        finally:
            with self._changed:
                self._thread = None
                self._start_if_needed()  # a question may have been queued during close()

    def _next(self) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: self._questions or self._paused, self._idle_s)
            return None if self._paused or not self._questions else self._questions.popleft()
