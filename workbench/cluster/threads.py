"""Threads of the kernel: background tasks, postponed interrupts, and the lock for taking turns."""

from __future__ import annotations

import asyncio
import atexit
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

_NOTICE_S = 1.0
_LEAST_S, _LONGEST_S = 0.05, 86400.0
"""Limits of one wait; Python's longest is finite."""
_loops: dict[int, asyncio.AbstractEventLoop] = {}
_loops_lock = threading.Lock()


def io_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of the thread that serves all agents; start it if necessary.

    It runs until this process ends; `asyncio.run_coroutine_threadsafe` gives it coroutines.
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
    """Call `task` in a new thread; return a future of its result, `future` if that is given."""
    future = Future() if future is None else future
    future.set_running_or_notify_cancel()  # from now on cancel() changes nothing and returns False

    def run() -> None:
        try:
            future.set_result(task())
        except BaseException as error:  # noqa: BLE001 - raised by the future's result()
            future.set_exception(error)

    # ipykernel finds the cell to which output belongs by the context
    threading.Thread(target=copy_context().run, args=(run,), daemon=True).start()
    return future


def at_once(items: Sequence[Item], function: Callable[[Item], Result]) -> list[Result]:
    """Call `function` with all items concurrently, and return the results in order.

    When the interpreter exits, and no thread can start any more, the calls are sequential.
    """
    if len(items) == 1 or not threading.main_thread().is_alive():
        return [function(item) for item in items]
    # a thread pool takes no work while the interpreter exits, which is when clusters are stopped
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
        Called from the signal handler with each interrupt while `task` runs; not with one
        that comes while the call for an earlier one lasts. Then `task` runs in another thread,
        because the two may need the same lock.
    """
    interrupts: list[int] = []
    calling = threading.Lock()

    def keep(number: int, _: FrameType | None) -> None:
        interrupts.append(number)
        # an interrupt that comes meanwhile is handled within this call, and must not wait for
        # a lock that this call holds
        if interrupted is not None and calling.acquire(blocking=False):
            try:
                interrupted()
            finally:
                calling.release()

    # the handler is there before the thread starts: after an interrupt of the start itself, the
    # caller would assume that nothing was done, and call the task again while it runs
    with _interrupt_handler(keep):
        result = task() if interrupted is None else in_background(task).result()
    if interrupts:
        raise KeyboardInterrupt
    return result


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Complete the body, which must be short, before an interrupt is raised.

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
    """Handle SIGINT by `handler` in the body; only the main thread is ever interrupted."""
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
    """A lock for cells and changes of the ranks, taken in the order of the requests."""

    def __init__(self) -> None:
        self._tickets: deque[SignalSafeEvent] = deque()
        self._lock = threading.Lock()

    def ticket(self) -> SignalSafeEvent:
        """Return a place in the queue, without waiting."""
        ticket = SignalSafeEvent()
        with self._lock:
            self._tickets.append(ticket)
        return ticket

    @contextmanager
    def held(
        self,
        ticket: SignalSafeEvent | None = None,
        what: str = "",
        interrupted: Callable[[], bool] = lambda: False,
    ) -> Iterator[None]:
        """Hold the lock in the body; raise `CellInterrupted` if the user interrupts the wait.

        Parameters
        ----------
        ticket
            A place in the queue, which is always released; a new one by default, which an
            interrupt cannot leave behind.
        what
            What waits, for a message after one second; empty for no message.
        interrupted
            Whether another thread has interrupted the wait; checked after each `wake`.
        """
        own_ticket = SignalSafeEvent() if ticket is None else ticket
        try:
            if ticket is None:
                with self._lock:
                    self._tickets.append(own_ticket)
            self._wait(own_ticket, what, interrupted)
            yield
        finally:
            with interrupts_later():  # a remaining ticket would block all others
                with self._lock, suppress(ValueError):
                    self._tickets.remove(own_ticket)
                self.wake()

    def wake(self) -> None:
        """Make all waiting threads check whether they were interrupted."""
        with self._lock:
            for ticket in self._tickets:
                ticket.set()

    def _wait(
        self, own_ticket: SignalSafeEvent, what: str, interrupted: Callable[[], bool]
    ) -> None:
        notice_s: float | None = _NOTICE_S if what else None
        try:
            while not (self._tickets[0] is own_ticket or interrupted()):
                if not own_ticket.wait(notice_s) and notice_s is not None:
                    notice_s = None
                    sys.stdout.write(
                        f"{what}: waiting for the cells that were queued before. To end the one "
                        "that runs, interrupt this one, then use %cluster interrupt.\n"
                    )
                    sys.stdout.flush()
            if interrupted():
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise CellInterrupted(
                f"{what or 'a cell'}: interrupted while it waited for the cells that were queued "
                "before, which go on. Wait for them, or end the one that runs with "
                "%cluster interrupt."
            ) from None


class LatestTask:
    """Calls `task` in a thread after a request, once more for all requests that come meanwhile.

    `task` reports its own errors; one that it raises ends that call only. At the exit of the
    interpreter, a call that lasts is completed.
    """

    def __init__(self, task: Callable[[], None]) -> None:
        self._task = task
        self._requested = self._running = False
        self._process = os.getpid()
        self._changed = threading.Condition()

    def request(self) -> None:
        """Have `task` called, and return immediately."""
        with self._changed:
            self._requested = True
            if self._running or not threading.main_thread().is_alive():
                return
            try:
                in_background(self._run)  # its first step waits for the lock
            except RuntimeError:  # no thread can start: the next request tries again
                return
            self._running, self._process = True, os.getpid()
            atexit.register(self.wait)

    def wait(self, timeout_s: float = 5.0) -> bool:
        """Wait until all requests have been served; return False if that takes too long.

        A fork has no thread to wait for.
        """
        if self._process != os.getpid():
            return True
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, timeout_s)

    def _run(self) -> None:
        while self._take_request():
            with suppress(BaseException):
                self._task()

    def _take_request(self) -> bool:
        """Return whether the task is to be called again; if not, the thread ends."""
        with self._changed:
            self._running, self._requested = self._requested, False
            if not self._running:
                atexit.unregister(self.wait)
                self._changed.notify_all()
            return self._running


class IdleWatch:
    """Calls `release` in a thread when nothing was `used` for `after_s` seconds; None for never."""

    def __init__(self, after_s: float | None, release: Callable[[], None]) -> None:
        self._after_s = after_s
        self._release = release
        self._stopped = threading.Event()
        self._used = 0.0

    def start(self) -> None:
        """Begin to watch."""
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
        """Restart the count."""
        self._used = time.monotonic()

    def stop(self) -> None:
        """End the watch."""
        self._stopped.set()

    def _watch(self, after_s: float, stopped: threading.Event) -> None:
        left_s = after_s
        while not stopped.wait(min(max(_LEAST_S, left_s), _LONGEST_S)):
            left_s = self._used + after_s - time.monotonic()
            if left_s <= 0:
                self._release()  # it may refuse, such as during a long cell
