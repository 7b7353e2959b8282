"""Prompts of a cell for the notebook's user: ``input()``, ``getpass()`` and the debugger."""

from __future__ import annotations

import builtins
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from workbench.rank.interrupts import Interrupts
from workbench.wire import Message
from workbench.wire.prompt_messages import InputReply, InputRequest, PromptKind

if TYPE_CHECKING:
    from workbench.rank.debugger import RankDebugger


class InputRefused(RuntimeError):
    """A cell has asked for input that no user can give."""

    def _render_traceback_(self) -> list[str]:
        """Return no traceback."""
        return []


_SIGNALS_S = 0.2
"""Interval at which a thread that waits for a reply checks for an interrupt."""


class _PendingPrompt:
    """A request that has no reply yet."""

    def __init__(self, kind: PromptKind) -> None:
        self.kind = kind
        self.replies: SimpleQueue[InputReply] = SimpleQueue()

    def wait(self) -> InputReply:
        """Return the reply once it arrives; an interrupt may come at any point.

        The queue is written in C. An interrupt of a `threading.Event` could leave its lock
        locked, and block the thread that receives replies; the queue has no such lock. A signal
        that arrives just before the thread sleeps does not wake it, so each sleep is short.
        """
        while True:
            with suppress(Empty):
                return self.replies.get(timeout=_SIGNALS_S)


class RankPrompts:
    """Asks the kernel for input, and waits for the reply in the thread that asks.

    Parameters
    ----------
    send
        Sends a message to the kernel, after all earlier output.
    interrupts
        Holds the number of the running cell.
    """

    def __init__(self, send: Callable[[Message], None], interrupts: Interrupts) -> None:
        self._send = send
        self._interrupts = interrupts
        self._numbers = itertools.count(1)
        self._waiting: dict[int, _PendingPrompt] = {}
        self._lock = threading.Lock()
        self._installed = False
        """Whether a cell may ask; guarded by `_lock`, so that none asks after its end."""
        self._process = os.getpid()
        self._interrupted = False
        self._debugger: type[RankDebugger] | None = None
        self.debugging = False
        """Whether the debugger asks."""

    @property
    def waiting(self) -> PromptKind | None:
        """Kind of a prompt that waits for input now, in any thread; None without one."""
        return next((request.kind for request in list(self._waiting.values())), None)

    def ask(self, prompt: object = "", kind: PromptKind = "input") -> str:
        """Return the line that the user types.

        Raises
        ------
        InputRefused
            No user can answer, for example because the front end has no input.
        EOFError
            The user ended the input, or the cell ends.
        KeyboardInterrupt
            The cell was interrupted.
        """
        if os.getpid() != self._process:
            raise InputRefused(
                f"{_call(kind)}: not possible in a process that the cell has started, such as a "
                "DataLoader's worker. Use num_workers=0, or ask in the rank itself."
            )
        number = next(self._numbers)
        waiting = _PendingPrompt(kind)
        try:
            with self._lock:
                cell = self._interrupts.cell
                if cell is None or self._interrupted or not self._installed:
                    raise EOFError("the cell has ended, or was interrupted")
                self._waiting[number] = waiting
            self._send(InputRequest(cell, number, kind, str(prompt)))
            reply = waiting.wait()
        except KeyboardInterrupt:
            self._interrupted = True  # a debugger that catches it must not ask again
            raise
        finally:
            self._waiting.pop(number, None)
        if reply.refusal:
            raise InputRefused(f"{_call(kind)}: {reply.refusal}")
        if reply.text is None:
            raise EOFError
        return reply.text

    def receive(self, message: Message) -> bool:
        """Handle an `InputReply`, in the outbox's thread; return whether the message is one."""
        if not isinstance(message, InputReply):
            return False
        waiting = self._waiting.get(message.number)
        if waiting is not None:
            waiting.replies.put(message)
        return True

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Make ``input()``, ``getpass()`` and the debugger ask the user while the body runs."""
        import getpass
        import pdb

        from workbench.rank.debugger import break_here, rank_debugger

        # always the same class, since modules that a cell imports may keep it
        debugger = self._debugger = self._debugger or rank_debugger(self)
        replaced: list[tuple[object, str, object]] = [
            (builtins, "input", self._input),
            (getpass, "getpass", self._getpass),
            (sys, "breakpointhook", break_here(debugger)),
            (pdb, "set_trace", break_here(debugger)),
            (pdb, "Pdb", debugger),
        ]
        saved = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
        for owner, name, value in replaced:
            setattr(owner, name, value)
        self._interrupted = self.debugging = False
        self._installed = True
        tracing = sys.gettrace()
        try:
            yield
        finally:
            sys.settrace(tracing)  # the debugger may still step
            for owner, name, value in saved:
                setattr(owner, name, value)
            with self._lock:
                self._installed = False
            for waiting in list(self._waiting.values()):  # of the user's threads
                waiting.replies.put(InputReply(0, None, ""))

    def _input(self, prompt: object = "", /) -> str:
        return self.ask(prompt, "breakpoint" if self.debugging else "input")

    def _getpass(self, prompt: str = "Password: ", stream: Any = None, **_: Any) -> str:  # noqa: ARG002
        return self.ask(prompt, "password")


def _call(kind: PromptKind) -> str:
    return {"password": "getpass()", "breakpoint": "breakpoint()"}.get(kind, "input()")
