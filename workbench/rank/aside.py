"""Looking at a VM beside the agent's own work: a driver that hangs costs only what was asked."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

_FRESH_S = 0.5
"""A sample that is younger is told again: rates over less would be noise."""


class Look(Protocol):
    """What an `Aside` looks with."""

    def take(self) -> Any:
        """Look once, and return plain JSON values."""

    def close(self) -> None:
        """Let go of what was opened."""


class Samples:
    """Samples of this VM, from one sampler however many ask; rates need two."""

    def __init__(self) -> None:
        from workbench.resources.counters import Sampler

        self._sampler = Sampler()
        self._newest: Any = None
        self._taken = float("-inf")

    def take(self) -> Any:
        """See `Look`."""
        if time.monotonic() - self._taken >= _FRESH_S:
            self._newest = self._sampler.sample().to_plain()
            self._taken = time.monotonic()
        return self._newest

    def close(self) -> None:
        """See `Look`."""
        self._sampler.close()


class Snapshots:
    """Snapshots of this VM."""

    def take(self) -> Any:
        """See `Look`."""
        from workbench.resources import take_snapshot

        return take_snapshot().to_plain()

    def close(self) -> None:
        """See `Look`."""


class Aside:
    """Answers one kind of question in a thread, which ends when nobody has asked for a while.

    Parameters
    ----------
    make
        Makes what it looks with; called in the thread, once for each thread.
    tell
        Called in the thread with each answer: the question's id, and
        ``{"answer": ...}`` or ``{"error": ...}``.
    idle_s
        The thread ends after this long without a question.
    """

    def __init__(
        self,
        make: Callable[[], Look],
        tell: Callable[[Any, dict[str, Any]], None],
        idle_s: float = 10.0,
    ) -> None:
        self._make = make
        self._tell = tell
        self._idle_s = idle_s
        self._changed = threading.Condition()
        self._asked: deque[Any] = deque()
        self._halted = False
        self._thread: threading.Thread | None = None

    def ask(self, question: Any) -> None:
        """Answer a question as soon as those before it are answered."""
        with self._changed:
            self._asked.append(question)
            self._changed.notify()
            self._begin()

    def halt(self, limit_s: float) -> None:
        """Let the thread end, for at most so long: a process is best forked without it."""
        with self._changed:
            self._halted = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(limit_s)

    def go_on(self) -> None:
        """Undo `halt`, and answer what was asked meanwhile."""
        with self._changed:
            self._halted = False
            self._begin()

    def _begin(self) -> None:
        if self._asked and not self._halted and self._thread is None:
            # a daemon: a driver that hangs must not keep the agent from ending
            self._thread = threading.Thread(target=self._run, name="workbench-aside", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        look: Look | None = None
        while (question := self._next()) is not None:
            try:
                look = look or self._make()
                told = {"answer": look.take()}
            except Exception as error:  # noqa: BLE001 - whoever asked is told
                told = {"error": f"{type(error).__name__}: {error}"}
            self._tell(question, told)
        try:
            if look is not None:
                look.close()
        finally:
            with self._changed:
                self._thread = None
                self._begin()  # asked for while it closed

    def _next(self) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: self._asked or self._halted, self._idle_s)
            return None if self._halted or not self._asked else self._asked.popleft()
