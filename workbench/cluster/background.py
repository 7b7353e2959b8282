"""Doing something in a thread: so that the caller goes on, or so that nothing cuts it short."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from types import FrameType
from typing import TypeVar

Asked = TypeVar("Asked")
Result = TypeVar("Result")


def in_background(
    task: Callable[[], Result], future: Future[Result] | None = None
) -> Future[Result]:
    """Call `task` in a thread; the future gives its result or its error.

    Parameters
    ----------
    future
        The one to use; a new one by default.
    """
    future = Future() if future is None else future
    future.set_running_or_notify_cancel()  # from now on cancel() changes nothing and returns False

    def follow() -> None:
        try:
            future.set_result(task())
        except BaseException as error:  # noqa: BLE001 - whoever asks the future gets it
            future.set_exception(error)

    # the copied context is how ipykernel knows which cell's output this is
    threading.Thread(target=copy_context().run, args=(follow,), daemon=True).start()
    return future


def uninterrupted(
    task: Callable[[], Result], interrupted: Callable[[], None] = lambda: None
) -> Result:
    """Call `task` once, to its end, even where the user interrupts; raise that afterwards.

    Where an interrupt is raised at once, `task` has not begun, and will not.

    Parameters
    ----------
    interrupted
        Called with each interrupt while `task` runs, from the signal handler.
    """
    # not even the start of the thread may be cut short: the caller, to whom an interrupt
    # means that nothing was done, would call the task a second time while it runs
    with _interrupts_kept(interrupted) as came:
        result = in_background(task).result()
    if came:
        raise KeyboardInterrupt
    return result


@contextmanager
def _interrupts_kept(interrupted: Callable[[], None]) -> Iterator[list[int]]:
    """Give a list to which each interrupt in the body is added, instead of being raised."""
    came: list[int] = []
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        yield came
        return

    def keep(number: int, _: FrameType | None) -> None:
        came.append(number)
        interrupted()

    signal.signal(signal.SIGINT, keep)
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, usual)


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Run the body to its end where the user interrupts meanwhile, and raise that afterwards.

    For what takes no time; a second interrupt is raised at once. In a thread that
    is not the main one nothing is interrupted anyway.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    usual = signal.getsignal(signal.SIGINT)

    def keep(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1 and callable(usual):
            usual(number, frame)

    signal.signal(signal.SIGINT, keep)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if len(came) == 1 and callable(usual):
        usual(came[0], None)


def at_once(asked: Sequence[Asked], ask: Callable[[Asked], Result]) -> list[Result]:
    """Call `ask` with each of `asked` at the same time, and return the results in order.

    At the interpreter's exit, when no thread can be started any more: one after the other.
    """
    if len(asked) == 1 or not threading.main_thread().is_alive():
        return [ask(one) for one in asked]
    # no pool: it takes no work once the interpreter has begun to end, when clusters are stopped
    futures = [in_background(partial(ask, one)) for one in asked]
    return [future.result() for future in futures]
