"""``hvd.init()`` in a cell: the kernel connects the ranks, sees that they wait, and can end that.

Ranks find each other through a rendezvous server, which the kernel usually closes
once the ring is formed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from queue import Empty, SimpleQueue
from typing import Any

import horovod.torch
from horovod.common.exceptions import HorovodInternalError
from horovod.torch import mpi_ops

from workbench.rank.recorder import Recorder
from workbench.rank.sockets import RingSockets
from workbench.wire import Message

_ANSWER_S = 30.0
_FAILED = "Horovod initialization failed"
"""How the ValueError begins that Horovod raises where ranks could not be joined."""
_init = mpi_ops.init
_ports: SimpleQueue[int] = SimpleQueue()
_recorder: Recorder
_ring: RingSockets
_send: Callable[[Message], None]
_leave: Callable[[], None]


def install(
    recorder: Recorder,
    ring: RingSockets,
    send: Callable[[Message], None],
    leave: Callable[[], None],
) -> None:
    """Replace Horovod's function, once, with one that the kernel serves and can end.

    Parameters
    ----------
    recorder
        Notes that the rank waits for the others.
    ring
        The ring that is being formed; the sockets of one that a cell forms are added to it.
    send
        Sends a message to the kernel.
    leave
        Shuts Horovod down without waiting for the other ranks.
    """
    global _recorder, _ring, _send, _leave
    _recorder, _ring, _send, _leave = recorder, ring, send, leave
    for owner in (horovod.torch, mpi_ops):
        if owner.init is _init:  # a cell may have replaced it since
            owner.init = init


@wraps(_init)
def init(*args: Any, **options: Any) -> None:
    """Initialize Horovod; raise HorovodInternalError where the ranks could not be joined."""
    if _ring.forming or mpi_ops.is_initialized():
        _init(*args, **options)
        return
    try:
        with _ring, _recorder.waits_in("init()"):
            os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(_port())
            _init(*args, **options)
    except ValueError as error:
        if not str(error).startswith(_FAILED):
            raise
        _leave()  # otherwise the next hvd.init() fails at once
        raise HorovodInternalError(
            "hvd.init(): the ranks could not be joined. Call it on all ranks of the cluster with "
            "the same process sets; the cell's output has Horovod's own message."
        ) from None


def _port() -> int:
    """Return the port of the kernel's rendezvous server, which it starts where there is none."""
    while not _ports.empty():  # of a call that was interrupted
        _ports.get()
    _send(Message("init"))
    try:
        return _ports.get(timeout=_ANSWER_S)
    except Empty:
        raise HorovodInternalError(
            f"hvd.init(): the kernel did not answer in {_ANSWER_S:g} s, so that the ranks cannot "
            "be joined. Run the cell again once the kernel is back."
        ) from None


def take_port(content: dict[str, Any]) -> None:
    """Take the kernel's answer, in any thread."""
    _ports.put(content["port"])
