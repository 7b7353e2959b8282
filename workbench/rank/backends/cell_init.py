"""Makes ``hvd.init()`` in a cell use a rendezvous server of the kernel, and makes it interruptible.

Horovod needs a rendezvous server to connect the ranks. The kernel closes its server when
the ring is formed, so a rank asks for another one.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from queue import Empty, SimpleQueue
from typing import Any

import horovod.torch
from horovod.common.exceptions import HorovodInternalError
from horovod.torch import mpi_ops

from workbench.rank.backends import mpi_controller, process_sets
from workbench.rank.backends.ring_sockets import RingSockets
from workbench.rank.recording.recorder import Recorder
from workbench.wire import Message
from workbench.wire.rank_messages import RendezvousPort, RendezvousRequest

_ANSWER_S = 30.0
_FAILED = "Horovod initialization failed"
"""Prefix of the message of Horovod's ValueError when it cannot connect the ranks."""
_init = mpi_ops.init
_ports: SimpleQueue[int] = SimpleQueue()
_recorder: Recorder
_ring: RingSockets
_send: Callable[[Message], None]
_leave: Callable[[], None]
_shutdown: threading.Lock
_starts: Callable[[], AbstractContextManager[None]]


def install(
    recorder: Recorder,
    ring: RingSockets,
    send: Callable[[Message], None],
    leave: Callable[[], None],
    shutdown: threading.Lock,
    starts: Callable[[], AbstractContextManager[None]],
) -> None:
    """Replace ``hvd.init`` by `init`.

    Parameters
    ----------
    recorder
        Records that the rank waits for the others.
    ring
        The ring; the sockets of a ring that a cell forms are added to it.
    send
        Sends a message to the kernel.
    leave
        Shuts Horovod down without waiting for the other ranks.
    shutdown
        Locked while another thread shuts Horovod down.
    starts
        Returns a context manager; ``hvd.init`` starts Horovod's thread in the ``with`` block.
    """
    global _recorder, _ring, _send, _leave, _shutdown, _starts  # noqa: PLW0603 - of this process
    _recorder = recorder
    _ring = ring
    _send = send
    _leave = leave
    _shutdown = shutdown
    _starts = starts
    for owner in (horovod.torch, mpi_ops):
        if owner.init is _init:  # otherwise it is replaced already, maybe by a cell
            owner.init = init


@wraps(_init)
def init(*args: Any, **options: Any) -> None:
    """Initialize Horovod; raise HorovodInternalError if the ranks could not be connected."""
    if _ring.forming or mpi_ops.is_initialized():
        _init(*args, **options)
        return
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_recorder.waits.blocking_call("init()"))
            over_mpi = mpi_controller.is_used()
            with _shutdown:  # wait until another thread has ended the previous ring
                stack.enter_context(contextlib.nullcontext() if over_mpi else _ring)
            if not over_mpi:
                os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(_port())
            with _starts():
                _init(*args, **options)
        process_sets.note_members(_recorder)
    except HorovodInternalError:
        _leave()  # otherwise the next hvd.init() fails at once
        raise
    except ValueError as error:
        if not str(error).startswith(_FAILED):
            raise
        _leave()
        raise HorovodInternalError(
            "hvd.init(): the ranks could not be connected. Call it on all ranks of the cluster "
            "with the same process sets. The cell's output has Horovod's own message."
        ) from None


def _port() -> int:
    """Ask the kernel for a rendezvous server, and return its port."""
    while not _ports.empty():  # discard the answer to a call that was interrupted
        _ports.get()
    _send(RendezvousRequest())
    try:
        return _ports.get(timeout=_ANSWER_S)
    except Empty:
        raise HorovodInternalError(
            f"hvd.init(): the kernel did not answer within {_ANSWER_S:g} s. Run the cell again "
            "once the kernel is available."
        ) from None


def take_port(answer: RendezvousPort) -> None:
    """Handle the kernel's answer, in any thread."""
    _ports.put(answer.port)
