"""Answers the kernel's requests in a thread, even while the main thread is blocked."""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
from collections.abc import Callable
from time import perf_counter_ns
from types import FrameType
from typing import Any, cast

from workbench.rank.backends.backend import Backend, CellCollectives
from workbench.rank.interrupts import ANY_CELL, Interrupts
from workbench.rank.prompts import RankPrompts
from workbench.rank.recording.collectives import UNNAMED
from workbench.rank.recording.recorder import Recorder
from workbench.rank.recording.waits import Blocked
from workbench.rank.sampler import LineSampler
from workbench.rank.traceback_frames import CELL_FILE
from workbench.wire import Message
from workbench.wire.rank_messages import (
    AbortInit,
    ClockPing,
    ClockPong,
    InterruptCell,
    RankState,
    ReleaseRanks,
    StateRequest,
)
from workbench.wire.sample_messages import LineSamplesRequest


class Control:
    """Handles the requests that must not wait until a cell ends."""

    def __init__(
        self,
        send: Callable[[Message], None],
        *,
        recorder: Recorder,
        collectives: CellCollectives,
        interrupts: Interrupts,
        backend: Backend,
        sampler: LineSampler,
        prompts: RankPrompts,
    ) -> None:
        self._send = send
        self._recorder = recorder
        self._collectives = collectives
        self._interrupts = interrupts
        self._backend = backend
        self._sampler = sampler
        self._prompts = prompts
        self._wait: tuple[object, int] = None, 0
        """The key of the latest wait that no hook has reported, and when it was first seen."""

    def receive(self, message: Message) -> bool:
        """Handle a request, in the outbox's thread; return whether the message is one."""
        match message:
            case ClockPing():  # is tested first: a delay makes the clock offset less accurate
                self._send(ClockPong(message.ring, message.sent_ns, perf_counter_ns()))
            case StateRequest():
                self._send(self._state(message))
            case LineSamplesRequest():
                self._sampler.ask(message, self._interrupts.cell)
            case InterruptCell():
                self._interrupts.interrupt(message.cell)
            case ReleaseRanks() if self._is_current(message.cell):
                self._backend.release(peer_lost=message.peer_lost)
            case AbortInit():
                self._backend.abort_init(message.ring)
            case _:
                return False
        return True

    def _state(self, request: StateRequest) -> RankState:
        """Return what the main thread is doing."""
        recorder = self._recorder
        backend = self._backend
        pending = backend.pending().operations
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        blocked = recorder.waits.blocked or self._unreported(frame)
        blocked = _identified(blocked, pending, backend.poll)
        name, process_set = backend.collective_of(frame) if blocked else ("", 0)
        process_set = (blocked.process_set or process_set) if blocked else 0
        stage, raised_s = self._interrupts.stage()
        return RankState(
            asked_s=request.asked_s,
            for_stall_report=request.for_stall_report,
            cell=self._interrupts.cell,
            collective=(blocked.name or name) if blocked else None,
            blocked_s=(perf_counter_ns() - blocked.since) / 1e9 if blocked else 0.0,
            collective_number=_number(blocked) if blocked else None,
            process_set=process_set,
            members=recorder.members.get(process_set),
            calls=self._collectives.calls().get(process_set, 0),
            outstanding=tuple(name for name, _ in pending.values()) if request.outstanding else (),
            stack=_stack(frame) if request.stack else "",
            interrupt_stage=stage,
            raised_s=raised_s,
            prompt=self._prompts.waiting,
        )

    def _unreported(self, frame: FrameType | None) -> Blocked | None:
        """Return the wait of the main thread that no hook has reported; None without one.

        The beginning of such a wait is unknown. It counts from the submission of the collective,
        or from the first request that found the wait.
        """
        wait = self._backend.wait_of(frame)
        if wait is None:
            self._wait = None, 0
            return None
        name, handle, submitted = wait
        key = (self._interrupts.cell, name, submitted if handle is None else handle)
        if self._wait[0] != key:
            self._wait = key, submitted or perf_counter_ns()
        return Blocked(name, self._wait[1], handle=handle)

    def _is_current(self, cell: int) -> bool:
        """Return whether a cell runs and `cell` is its number or `ANY_CELL`."""
        current = self._interrupts.cell
        return current is not None and cell in {current, ANY_CELL}


def _identified(
    blocked: Blocked | None,
    pending: dict[Any, tuple[str, int]],
    poll: Callable[[Any], bool | int],
) -> Blocked | None:
    """Return a blocked collective with its name and process set; None if it has completed."""
    if blocked is None or blocked.handle is None:
        return blocked
    name, process_set = pending.get(blocked.handle, ("", 0))
    if not name:
        with contextlib.suppress(ValueError):  # the handle was cleared after it was read
            return None if poll(blocked.handle) else blocked
        return None
    return blocked._replace(name=blocked.name or name, process_set=process_set)


def _number(blocked: Blocked) -> int | None:
    """Return Horovod's number of a collective that has no name; None for others."""
    is_unnamed = blocked.name.endswith(UNNAMED) and isinstance(blocked.handle, int)
    return cast("int", blocked.handle) if is_unnamed else None


def _stack(frame: FrameType | None) -> str:
    """Return the stack from the cell's code to the innermost frame."""
    frames = traceback.extract_stack(frame)
    cell_indices = [index for index, summary in enumerate(frames) if CELL_FILE in summary.filename]
    return "".join(
        traceback.format_list(frames[cell_indices[0] :] if cell_indices else frames[-3:])
    )
