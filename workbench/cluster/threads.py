"""Background tasks, deferred interrupts, and the lock that orders cells."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from types import FrameType
from typing import TypeVar

from workbench.errors import CellInterrupted
from workbench.wire.wakeup import SignalSafeEvent

Item = TypeVar("Item")
Result = TypeVar("Result")

_log = logging.getLogger(__name__)

_NOTICE_S = 1.0
_MIN_WAIT_S = 0.05
_MAX_WAIT_S = 86400.0
"""Longer waits are split, because Python raises OverflowError for very long time limits."""
_loops: dict[int, asyncio.AbstractEventLoop] = {}
_loops_lock = threading.Lock()


def io_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of the thread that serves all agents; start it if necessary.

    The thread runs until this process ends. `asyncio.run_coroutine_threadsafe` submits coroutines
    to the loop.
    """
    with _loops_lock:
        loop = _loops.get(os.getpid())  # threads do not survive a fork
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="workbench-agents", daemon=True).start()
        return loop


def in_background(
    task: Callable[[], Result], future: Future[Result] | None = None
) -> Future[Result]:
    """Call `task` in a new thread; return a future of its result (`future`, if it is given).

    Examples
    --------
    >>> in_background(lambda: 6 * 7).result()
    42
    """
    future = Future() if future is None else future
    future.set_running_or_notify_cancel()  # from now on, cancel() has no effect and returns False

    def run() -> None:
        try:
            future.set_result(task())
        except BaseException as error:  # noqa: BLE001 - raised by the future's result()
            future.set_exception(error)

    # ipykernel uses the context to assign output to a cell
    threading.Thread(target=copy_context().run, args=(run,), daemon=True).start()
    return future


def run_concurrently(items: Sequence[Item], function: Callable[[Item], Result]) -> list[Result]:
    """Call `function` with all items concurrently, and return the results in order.

    When the interpreter exits, no thread can start any more; then the calls are sequential.

    Examples
    --------
    >>> run_concurrently([1, 2, 3], lambda number: number**2)
    [1, 4, 9]
    """
    if len(items) == 1 or not threading.main_thread().is_alive():
        return [function(item) for item in items]
    # clusters are stopped while the interpreter exits, when a thread pool accepts no work
    futures = [in_background(partial(function, item)) for item in items]
    return [future.result() for future in futures]


def uninterrupted(
    task: Callable[[], Result], interrupted: Callable[[], None] | None = None
) -> Result:
    """Complete `task` even if the user interrupts; raise KeyboardInterrupt afterwards.

    If KeyboardInterrupt is raised before the task has begun, it never begins.

    Parameters
    ----------
    interrupted
        Called from the signal handler with each interrupt while `task` runs, unless an earlier
        call still runs. With this argument, `task` runs in another thread, because `task` and
        `interrupted` may need the same lock.

    Examples
    --------
    >>> uninterrupted(lambda: "done")
    'done'
    """
    interrupts: list[int] = []
    calling = threading.Lock()

    def keep(number: int, _: FrameType | None) -> None:
        interrupts.append(number)
        # a further interrupt is handled within this call, and must not wait for a lock that this
        # call holds
        if interrupted is not None and calling.acquire(blocking=False):
            try:
                interrupted()
            finally:
                calling.release()

    # the handler is installed before the thread starts: after an interrupt of the start itself,
    # the caller would assume that nothing was done, and call the task again while it runs
    with _interrupt_handler(keep):
        result = task() if interrupted is None else in_background(task).result()
    if interrupts:
        raise KeyboardInterrupt
    return result


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Defer an interrupt until the end of the body, which must be short.

    A second interrupt is raised immediately.
    """
    interrupts: list[int] = []
    usual = signal.getsignal(signal.SIGINT)

    def keep(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        if len(interrupts) > 1 and callable(usual):
            usual(number, frame)

    with _interrupt_handler(keep):
        yield
    if len(interrupts) == 1 and callable(usual):
        usual(interrupts[0], None)


@contextmanager
def _interrupt_handler(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle SIGINT with `handler` in the body; Python only interrupts the main thread."""
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


class FairLock:
    """A lock for cells and changes of the ranks, which is acquired in the order of the requests.

    Examples
    --------
    >>> turns = FairLock()
    >>> with turns.held():
    ...     print("my turn")
    my turn
    """

    def __init__(self) -> None:
        self._tickets: deque[SignalSafeEvent] = deque()
        self._lock = threading.Lock()

    def ticket(self) -> SignalSafeEvent:
        """Return a new position in the queue, without waiting."""
        ticket = SignalSafeEvent()
        with self._lock:
            self._tickets.append(ticket)
        return ticket

    @contextmanager
    def held(
        self,
        ticket: SignalSafeEvent | None = None,
        activity: str = "",
        interrupted: Callable[[], bool] = lambda: False,
    ) -> Iterator[None]:
        """Hold the lock in the body; raise `CellInterrupted` if the user interrupts the wait.

        Parameters
        ----------
        ticket
            A position in the queue, which is always released. By default, a new position is used,
            which an interrupt cannot leave behind.
        activity
            The activity that waits, for a message after one second; empty for no message.
        interrupted
            Returns whether another thread has interrupted the wait; checked after each `wake`.
        """
        held_ticket = SignalSafeEvent() if ticket is None else ticket
        try:
            if ticket is None:
                with self._lock:
                    self._tickets.append(held_ticket)
            self._wait(held_ticket, activity, interrupted)
            yield
        finally:
            with defer_interrupts():  # a remaining ticket would block all others
                with self._lock, suppress(ValueError):
                    self._tickets.remove(held_ticket)
                self.wake()

    def wake(self) -> None:
        """Make all waiting threads check whether they were interrupted."""
        with self._lock:
            for ticket in self._tickets:
                ticket.set()

    def _wait(
        self, ticket: SignalSafeEvent, activity: str, interrupted: Callable[[], bool]
    ) -> None:
        notice_s: float | None = _NOTICE_S if activity else None
        try:
            while not (self._tickets[0] is ticket or interrupted()):
                if not ticket.wait(notice_s) and notice_s is not None:
                    notice_s = None
                    sys.stdout.write(
                        f"{activity}: waiting for the cells that were queued before. To end the "
                        "one that runs, interrupt this one, then use %cluster interrupt.\n"
                    )
                    sys.stdout.flush()
            if interrupted():
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise CellInterrupted(
                f"{activity or 'a cell'}: interrupted while it waited for the cells that were "
                "queued before, which go on. Wait for them, or end the one that runs with "
                "%cluster interrupt."
            ) from None


class LatestTask:
    """Calls `task` in a thread after a request.

    Requests during a call are merged into one further call. `task` reports its own errors; an
    exception only ends the current call. At the exit of the interpreter, the current call is
    completed.

    Examples
    --------
    >>> results = []
    >>> latest = LatestTask(lambda: results.append("called"))
    >>> latest.request()
    >>> latest.wait(), results
    (True, ['called'])
    """

    def __init__(self, task: Callable[[], None]) -> None:
        self._task = task
        self._requested = self._running = False
        self._process = os.getpid()
        self._changed = threading.Condition()

    def request(self) -> None:
        """Schedule a call of `task`, and return immediately."""
        with self._changed:
            self._requested = True
            if self._running or not threading.main_thread().is_alive():
                return
            try:
                in_background(self._run)  # its first step waits for the lock
            except RuntimeError:  # no thread can start; the next request tries again
                return
            self._running = True
            self._process = os.getpid()
            atexit.register(self.wait)

    def wait(self, timeout_s: float = 5.0) -> bool:
        """Wait until all requests have been served; return False if that takes too long.

        In a fork, return True, because the thread only exists in the parent.
        """
        if self._process != os.getpid():
            return True
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, timeout_s)

    def _run(self) -> None:
        while self._accept_request():
            with suppress(BaseException):
                self._task()

    def _accept_request(self) -> bool:
        """Return whether the task is to be called again; if not, the thread ends."""
        with self._changed:
            self._running = self._requested
            self._requested = False
            if not self._running:
                atexit.unregister(self.wait)
                self._changed.notify_all()
            return self._running


class IdleWatch:
    """Calls `release` in a thread after `after_s` seconds without a call of `used`.

    If `after_s` is None, `release` is never called.
    """

    def __init__(self, after_s: float | None, release: Callable[[], None]) -> None:
        self._after_s = after_s
        self._release = release
        self._stopped = threading.Event()
        self._used = 0.0

    def start(self) -> None:
        """Start the watch."""
        if self._after_s is None:
            return
        self._stopped = threading.Event()
        self.used()
        threading.Thread(
            target=self._watch,
            args=(self._after_s, self._stopped),
            name="workbench-idle",
            daemon=True,
        ).start()

    def used(self) -> None:
        """Restart the countdown."""
        self._used = time.monotonic()

    def stop(self) -> None:
        """End the watch."""
        self._stopped.set()

    def _watch(self, after_s: float, stopped: threading.Event) -> None:
        remaining_s = after_s
        while not stopped.wait(min(max(_MIN_WAIT_S, remaining_s), _MAX_WAIT_S)):
            remaining_s = self._used + after_s - time.monotonic()
            if remaining_s <= 0:
                _log.debug("nothing was used for %g s", after_s)
                self._release()  # the release may refuse, such as during a long cell
