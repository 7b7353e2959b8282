"""Answers the kernel from a thread of its own, while the main thread is busy or blocked."""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from collections.abc import Callable
from time import perf_counter_ns
from types import FrameType
from typing import Any

from workbench.wire import Message

_CELL_FILE = "ipykernel_"
"""ipykernel compiles each cell under a file name with this in it."""


class Control:
    """Handles the requests that must not wait for a cell to end.

    Parameters
    ----------
    send
        Sends a message to the kernel.
    blocked
        Tells the collective that the main thread waits for, and since when.
    cell
        Tells the number of the cell that runs, or None.
    release
        Frees every rank from its collective by shutting Horovod down.
    """

    def __init__(
        self,
        send: Callable[[Message], None],
        *,
        blocked: Callable[[], tuple[str, int] | None],
        cell: Callable[[], int | None],
        release: Callable[[], None],
    ) -> None:
        self._send = send
        self._blocked = blocked
        self._cell = cell
        self._release = release

    def __call__(self, message: Message) -> None:
        """Handle one request; an unknown one is answered as such."""
        handler = {
            "where": self._where,
            "interrupt": self._interrupt,
            "release": self._release_ranks,
        }.get(message.kind)
        if handler is None:
            self._send(Message("unknown", {"kind": message.kind}))
        else:
            handler(message.content)

    def _where(self, content: dict[str, Any]) -> None:
        """Tell what the main thread does: its cell, its collective, its stack."""
        blocked = self._blocked()
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        answer = {
            "cell": self._cell(),
            "tensor": blocked[0] if blocked else None,
            "blocked_s": (perf_counter_ns() - blocked[1]) / 1e9 if blocked else 0.0,
            "stack": _stack(frame) if content.get("stack") else "",
        }
        self._send(Message("where", answer))

    def _interrupt(self, content: dict[str, Any]) -> None:
        """Raise KeyboardInterrupt in the cell, if it still is the one meant."""
        if content.get("cell") == self._cell():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def _release_ranks(self, content: dict[str, Any]) -> None:
        """Shut Horovod down; that may take seconds, and questions must still be answered."""
        if content.get("cell") == self._cell():
            threading.Thread(target=self._release, name="workbench-release", daemon=True).start()


def _stack(frame: FrameType | None) -> str:
    """Return the frames from the cell's own code downward, innermost last."""
    frames = traceback.extract_stack(frame)
    own = [place for place, summary in enumerate(frames) if _CELL_FILE in summary.filename]
    return "".join(traceback.format_list(frames[own[0] :] if own else frames[-3:]))
