"""Adding and removing process sets, where the ring was formed by a kernel that may be gone.

Horovod connects the members of a new process set through the rendezvous server
of the ring, and ends the process where there is none. A process set ends with
the ring, and its number is given to another set of the next ring.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import horovod.torch
from horovod.common import process_sets
from horovod.common.exceptions import HorovodInternalError

from workbench.rank.recorder import Recorder
from workbench.rank.sockets import RingSockets

_DYNAMIC = "HOROVOD_DYNAMIC_PROCESS_SETS"
_CONNECT_S = 5.0
_SHUT_DOWN = "Horovod is shutting down."
"""What both functions raise as a ValueError, where every collective raises HorovodInternalError."""
_add, _remove = process_sets.add_process_set, process_sets.remove_process_set
_recorder: Recorder
_ring: RingSockets


class ProcessSetLost(RuntimeError, AttributeError):
    """A process set of an earlier ring is used."""


class _LostProcessSet(process_sets.ProcessSet):
    """What a process set of the user becomes at the end of its ring, until it is added again."""

    @property
    def process_set_id(self) -> int:
        """Raise what is wrong: Horovod asks for the number wherever the set is used."""
        raise ProcessSetLost(
            f"process set of ranks {self.ranks}: the ring was rebuilt since, which ended it. "
            f"Add it again on all ranks with hvd.add_process_set({self.ranks})."
        )

    @process_set_id.setter
    def process_set_id(self, number: int | None) -> None:
        """Be a usual process set again: it is added, or removed for good."""
        self.__class__ = process_sets.ProcessSet
        self.process_set_id = number

    def __str__(self) -> str:
        return f"ProcessSet(ranks={self.ranks}, ended with its ring)"


def end_with_ring(things: Iterable[Any]) -> None:
    """Have every process set among some objects say that it is gone, wherever it is used.

    Without this it would be a set of other ranks, once one gets its number.
    """
    for thing in things:
        if type(thing) is process_sets.ProcessSet and thing.process_set_id:
            thing.__class__ = _LostProcessSet


def dynamic() -> bool:
    """Return whether Horovod lets process sets be added to the ring."""
    value = os.environ.get(_DYNAMIC, "")
    return value.strip().isdigit() and int(value) > 0


def install(recorder: Recorder, ring: RingSockets) -> None:
    """Put functions in the place of Horovod's that check, and that the kernel can end.

    Parameters
    ----------
    recorder
        Notes that the rank waits for the others.
    ring
        Gets the sockets of the process sets.
    """
    global _recorder, _ring
    _recorder, _ring = recorder, ring
    for owner in (horovod.torch, horovod.torch.mpi_ops, process_sets):
        owner.add_process_set = add_process_set
        owner.remove_process_set = remove_process_set


@wraps(_add)
def add_process_set(process_set: Any) -> Any:
    """Add a process set, as Horovod does; the ring's sockets grow by those of the set."""
    _check()
    ranks = getattr(process_set, "ranks", process_set)
    with _ring.grows(), _waits("add_process_set", ranks):
        added = _add(process_set)
    _recorder.members[added.process_set_id] = tuple(added.ranks)
    return added


@wraps(_remove)
def remove_process_set(process_set: Any) -> bool:
    """Remove a process set, as Horovod does."""
    number = process_set.process_set_id
    try:
        with _waits("remove_process_set", process_set.ranks):
            return bool(_remove(process_set))
    except HorovodInternalError:
        process_set.process_set_id = number  # it ends with its ring instead, and says so
        raise


@contextmanager
def _waits(name: str, ranks: Iterable[int]) -> Iterator[None]:
    """Let the kernel know that the body waits for all ranks; raise what collectives raise."""
    try:
        with _recorder.waits_in(f"{name}()"):
            yield
    except ValueError as error:
        if str(error) != _SHUT_DOWN:
            raise
        raise HorovodInternalError(
            f"hvd.{name}({list(ranks)}): Horovod was shut down before all ranks had called it."
        ) from None


def _check() -> None:
    """Raise where Horovod would refuse, or end the process."""
    if not dynamic():
        raise RuntimeError(
            f"hvd.add_process_set: {_DYNAMIC} is not set. Set os.environ['{_DYNAMIC}'] = '1' on "
            "every rank, and form the ring again with hvd.shutdown() at the end of that cell."
        )
    address = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
    port = int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
    try:
        socket.create_connection((address, port), _CONNECT_S).close()
    except OSError as error:
        raise RuntimeError(
            f"hvd.add_process_set: the server at {address}:{port} that connects its ranks cannot "
            f"be reached ({error}). Call hvd.shutdown() in a cell, which forms the ring again."
        ) from None
