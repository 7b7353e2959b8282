"""Answers the kernel from a thread of its own, while the main thread is busy or blocked."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from types import FrameType
from typing import Any, cast

from workbench.rank.collectives import UNNAMED
from workbench.rank.interrupts import ANY_CELL, Interrupts
from workbench.rank.places import CELL_FILE
from workbench.rank.recorder import Blocked, Recorder
from workbench.wire import Message

_HOROVOD_FILES = ("horovod/torch/mpi_ops.py", "horovod/torch/functions.py")


class Control:
    """Handles the requests that must not wait for a cell to end.

    Parameters
    ----------
    send
        Sends a message to the kernel.
    recorder
        Tells the collective that the main thread waits for, and what was submitted.
    interrupts
        Interrupts the cell that runs, and tells which.
    release
        Frees every rank from its collective, in a thread; ``torn`` says whether a rank is gone.
    do_not_meet
        Gives up the ring of a name while it is being formed.
    """

    def __init__(
        self,
        send: Callable[[Message], None],
        *,
        recorder: Recorder,
        interrupts: Interrupts,
        release: Callable[..., None],
        do_not_meet: Callable[[str], None],
    ) -> None:
        self._send = send
        self._recorder = recorder
        self._interrupts = interrupts
        self._release = release
        self._do_not_meet = do_not_meet

    def __call__(self, message: Message) -> None:
        """Handle one request; an unknown one is answered as such."""
        if message.kind == "ping":  # before all else: what comes between blurs the clock
            self._send(Message("pong", {**message.content, "answered": perf_counter_ns()}))
            return
        handlers: dict[str, Callable[[dict[str, Any]], None]] = {
            "where": self._where,
            "interrupt": self._interrupt,
            "release": self._release_ranks,
            "do_not_meet": lambda content: _in_thread(partial(self._do_not_meet, content["ring"])),
        }
        handler = handlers.get(message.kind)
        if handler is None:
            self._send(Message("unknown", {"kind": message.kind}))
        else:
            handler(message.content)

    def _where(self, content: dict[str, Any]) -> None:
        """Tell what the main thread does: its cell, its collective, its stack, its interrupt."""
        recorder = self._recorder
        blocked = recorder.blocked
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        process_set = (blocked.process_set or _process_set_of(frame)) if blocked else 0
        answer = {
            "asked": content.get("asked", 0.0),
            "cell": self._interrupts.cell,
            "tensor": (blocked.name or _collective_of(frame)) if blocked else None,
            "blocked_s": (perf_counter_ns() - blocked.since) / 1e9 if blocked else 0.0,
            "number": _number(blocked) if blocked else None,
            "members": recorder.members.get(process_set),
            "process_set": process_set,
            "calls": recorder.calls.get(process_set, 0),
            "under_way": recorder.under_way() if content.get("under_way") else [],
            "stack": _stack(frame) if content.get("stack") else "",
            "watch": content.get("watch", False),
            **self._interrupts.stage(),
        }
        self._send(Message("where", answer))

    def _interrupt(self, content: dict[str, Any]) -> None:
        """Raise KeyboardInterrupt in the cell that is meant."""
        self._interrupts.interrupt(content["cell"])

    def _release_ranks(self, content: dict[str, Any]) -> None:
        """Shut Horovod down; that may take seconds, and questions must still be answered."""
        if self._meant(content):
            self._release(torn=bool(content.get("torn")))

    def _meant(self, content: dict[str, Any]) -> bool:
        """Whether the cell that runs is the one that is asked for, or any is."""
        cell = self._interrupts.cell
        return cell is not None and content.get("cell") in {cell, ANY_CELL}


def _process_set_of(frame: FrameType | None) -> int:
    """Return the process set that the cell gave to a collective that was not heard, or 0."""
    while frame is not None:
        if frame.f_code.co_filename.endswith(_HOROVOD_FILES) and "process_set" in frame.f_locals:
            number = getattr(frame.f_locals["process_set"], "process_set_id", 0)
            return int(number or 0)
        frame = frame.f_back
    return 0


def _number(blocked: Blocked) -> int | None:
    """Return the number by which Horovod knows a collective without a name; None for others."""
    known = blocked.name.endswith(UNNAMED) and isinstance(blocked.handle, int)
    return cast("int", blocked.handle) if known else None


def _in_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="workbench-release", daemon=True).start()


def _collective_of(frame: FrameType | None) -> str:
    """Return the name of the collective that the cell called, from the frames that wait in it."""
    function = ""
    while frame is not None:
        if frame.f_code.co_filename.endswith(_HOROVOD_FILES):
            name = frame.f_locals.get("name")
            if isinstance(name, str) and name:
                return name
            function = frame.f_code.co_name
        elif function and function != "synchronize":
            break
        frame = frame.f_back
    return f"{function}()" if function else "a collective of the cell's own"


def _stack(frame: FrameType | None) -> str:
    """Return the frames from the cell's own code downward, innermost last."""
    frames = traceback.extract_stack(frame)
    own = [place for place, summary in enumerate(frames) if CELL_FILE in summary.filename]
    return "".join(traceback.format_list(frames[own[0] :] if own else frames[-3:]))
