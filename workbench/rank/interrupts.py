"""Interrupts the code of a cell, but no other code of the main thread.

By default SIGINT raises KeyboardInterrupt whenever ipykernel handles a request. The request would
be lost, and the kernel would wait forever for its result. Therefore a rank ignores SIGINT while it
handles a cell, except during the code of that cell.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, TypeVar

import torch

from workbench.wire.rank_messages import InterruptStage

ANY_CELL = -1
"""Stands for the running cell; a kernel that attaches later does not know the cell's number."""
_RETRY_S = 0.02
_postponing: set[CodeType] = set()
_NEUTRAL_PATHS = ("/workbench/rank/", "/torch/futures/", "/contextlib.py", "/threading.py")
"""Parts of the names of files without code of the user that such a function may call."""
_RUN_BACKWARD = torch.autograd.graph._engine_run_backward.__code__
Function = TypeVar("Function", bound=Callable[..., Any])


def postpones_interrupts(function: Function) -> Function:
    """Mark a function of this package that C++ calls; interrupts wait until it has returned.

    Without this package, no Python code would run there: PyTorch's backward on CPUs raises
    KeyboardInterrupt after its return. An interrupt in the middle would leave a DDP model in a
    state that makes the next forward fail.
    """
    _postponing.add(function.__code__)
    return function


def _postpones(frame: FrameType | None) -> bool:
    """Return whether an interrupt at a frame has to wait until C++ code has returned.

    This is true in a function that is marked with `postpones_interrupts`, and at the call of a
    backward that still runs. C++ code between the two may have no frame of Python.
    """
    while frame is not None:
        code = frame.f_code
        if code in _postponing:
            return True
        if code is _RUN_BACKWARD:
            return bool(torch._C._current_graph_task_id() >= 0)
        if not any(part in code.co_filename for part in _NEUTRAL_PATHS):
            return False
        frame = frame.f_back
    return False


class Interrupts:
    """Interrupts the running cell at the kernel's request.

    The main thread calls, in this order: `cell_runs` around all work for a cell, `allowed` around
    its code, `code_ended` after the code, and `end_cell` when the result is ready.

    Examples
    --------
    >>> interrupts = Interrupts()
    >>> with interrupts.cell_runs(7):
    ...     interrupts.interrupt(7)
    ...     try:
    ...         with interrupts.allowed():
    ...             print("not reached")
    ...     except KeyboardInterrupt:
    ...         print("interrupted")
    interrupted
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cell: int | None = None
        self._asked: int | None = None
        self._open = False
        self._ending = False
        self._sent = 0
        self._raised = 0
        self._raised_at = 0.0

    @property
    def cell(self) -> int | None:
        """Number of the running cell, or None."""
        return self._cell

    def interrupt(self, cell: int) -> None:
        """Raise KeyboardInterrupt in the code of a cell, now or at its beginning."""
        with self._lock:
            if cell == ANY_CELL and self._cell is not None:
                cell = self._cell
            self._asked = cell
            if cell == self._cell and self._open:
                self._sent += 1
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def stage(self) -> tuple[InterruptStage, float]:
        """Return the progress of the cell's interrupt; any thread may call this.

        Returns
        -------
        tuple
            The stage, and the seconds since KeyboardInterrupt was raised, or 0.
        """
        with self._lock:
            raised_s = time.monotonic() - self._raised_at if self._raised else 0.0
            return self._stage(), raised_s

    def _stage(self) -> InterruptStage:
        if self._cell is None:
            return ""
        if self._ending:
            return "ending"
        if not self._sent:
            return "running"
        if self._raised >= self._sent:
            return "raised"
        ours = signal.getsignal(signal.SIGINT) == self._raise
        return "pending" if ours or not self._open else "ignored"

    @contextmanager
    def cell_runs(self, number: int) -> Iterator[None]:
        """Run a cell in the body; SIGINT is ignored there except in `allowed`."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._sent = self._raised = 0
        self._ending = False
        self._cell = number
        try:
            yield
        finally:
            self._cell = None
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def allowed(self, *, earlier: bool = True) -> Iterator[None]:
        """Make an interrupt of the running cell raise KeyboardInterrupt in the body.

        Parameters
        ----------
        earlier
            Whether to raise an interrupt that has arrived earlier, immediately.
        """
        signal.signal(signal.SIGINT, self._raise)
        usual = sys.unraisablehook
        sys.unraisablehook = self._unraisable
        try:
            with self._lock:
                asked = earlier and self._asked == self._cell
                self._open = True
            if asked:
                raise KeyboardInterrupt
            yield
        finally:
            while True:
                try:
                    with self._lock:
                        self._open = False
                    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a pending signal raises here
                    break
                except KeyboardInterrupt:  # too late, as the body has ended
                    continue
            if sys.unraisablehook == self._unraisable:
                sys.unraisablehook = usual

    def code_ended(self) -> None:
        """Note that the cell's code has ended, and that its result is being prepared."""
        self._ending = True

    def end_cell(self) -> None:
        """Note that the result is ready: the cell can no longer be interrupted."""
        self._cell = None

    def _raise(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGINT as Python does by default, or postpone it if the frame requires that."""
        if _postpones(frame):
            self._repeat()
            return
        self._raised = self._sent = max(self._sent, 1)
        self._raised_at = time.monotonic()
        signal.default_int_handler(number, frame)

    def _unraisable(self, unraisable: Any) -> None:
        """Repeat an interrupt that a destructor or a callback has discarded."""
        if not isinstance(unraisable.exc_value, KeyboardInterrupt):
            sys.__unraisablehook__(unraisable)
            return
        self._repeat()  # a timer raises it later, because this function would discard it too

    def _repeat(self) -> None:
        timer = threading.Timer(_RETRY_S, self._send_again)
        timer.daemon = True
        timer.start()

    def _send_again(self) -> None:
        with self._lock:
            if self._open:
                self._sent += 1
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
