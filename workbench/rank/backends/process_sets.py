"""Adds and removes process sets safely.

Horovod connects the members of a new process set through the rendezvous server of the ring. This
server runs in the kernel. Horovod ends the process if it cannot reach the server. A process set
ends with its ring, and a set of the next ring may get the same number.
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

from workbench.rank.backends.ring_sockets import RingSockets
from workbench.rank.recording.recorder import Recorder

_DYNAMIC = "HOROVOD_DYNAMIC_PROCESS_SETS"
_CONNECT_S = 5.0
_SHUT_DOWN = "Horovod is shutting down."
"""Message of a ValueError; in this case, collectives raise HorovodInternalError."""
_add = process_sets.add_process_set
_remove = process_sets.remove_process_set
_recorder: Recorder
_ring: RingSockets


class ProcessSetLost(RuntimeError, AttributeError):
    """A process set of a previous ring was used."""


class _LostProcessSet(process_sets.ProcessSet):
    """A process set of the user after the end of its ring; adding it again restores it."""

    @property
    def process_set_id(self) -> int:
        """Raise an error: Horovod reads the number whenever the set is used."""
        raise ProcessSetLost(
            f"process set of ranks {self.ranks}: the ring was rebuilt since, which ended it. "
            f"Add it again on all ranks with hvd.add_process_set({self.ranks})."
        )

    @process_set_id.setter
    def process_set_id(self, number: int | None) -> None:
        """Become a regular process set again, because the set is being added or removed."""
        self.__class__ = process_sets.ProcessSet
        self.process_set_id = number

    def __str__(self) -> str:
        return f"ProcessSet(ranks={self.ranks}, ended with its ring)"


def end_with_ring(objects: Iterable[Any]) -> None:
    """Make every process set among the objects raise an error on use.

    Otherwise it could be mistaken for another set that has got its number.
    """
    for candidate in objects:
        if type(candidate) is process_sets.ProcessSet and candidate.process_set_id:
            candidate.__class__ = _LostProcessSet


def dynamic() -> bool:
    """Return whether process sets can be added to the ring.

    Horovod reads this setting from an environment variable.
    """
    value = os.environ.get(_DYNAMIC, "")
    return value.strip().isdigit() and int(value) > 0


def install(recorder: Recorder, ring: RingSockets) -> None:
    """Replace Horovod's functions by the functions of this module."""
    global _recorder, _ring  # noqa: PLW0603 - of this process
    _recorder = recorder
    _ring = ring
    for owner in (horovod.torch, horovod.torch.mpi_ops, process_sets):
        owner.add_process_set = add_process_set
        owner.remove_process_set = remove_process_set


def note_members(recorder: Recorder) -> None:
    """Record the ranks of the process sets of a new ring.

    Raises
    ------
    HorovodInternalError
        The ring has already ended; hvd.init() may conceal this.
    """
    try:
        sets: dict[int, list[int]] = process_sets._basics._get_process_set_ids_and_ranks()
    except (ValueError, RuntimeError) as error:
        raise HorovodInternalError(
            f"hvd.init(): the ring ended just after it was formed ({error}). Call it on all ranks "
            "of the cluster with the same process sets."
        ) from None
    recorder.members.clear()
    recorder.members.update({number: tuple(ranks) for number, ranks in sets.items() if number})


@wraps(_add)
def add_process_set(process_set: Any) -> Any:
    """Add a process set as Horovod does, and add its sockets to the ring."""
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
        process_set.process_set_id = number  # the set was not removed; it ends with its ring
        raise


@contextmanager
def _waits(name: str, ranks: Iterable[int]) -> Iterator[None]:
    """Record the body's wait for all ranks; raise the same errors as collectives."""
    try:
        with _recorder.waits.blocking_call(f"{name}()"):
            yield
    except ValueError as error:
        if str(error) != _SHUT_DOWN:
            raise
        raise HorovodInternalError(
            f"hvd.{name}({list(ranks)}): Horovod was shut down before all ranks had called it."
        ) from None


def _check() -> None:
    """Raise an error if Horovod would refuse the call, or end the process."""
    if not dynamic():
        raise RuntimeError(
            f"hvd.add_process_set: {_DYNAMIC} is not set. Set os.environ['{_DYNAMIC}'] = '1' on "
            "every rank, and rebuild the ring with hvd.shutdown() at the end of that cell."
        )
    address = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
    port = int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
    try:
        socket.create_connection((address, port), _CONNECT_S).close()
    except OSError as error:
        raise RuntimeError(
            f"hvd.add_process_set: the server at {address}:{port} that connects its ranks cannot "
            f"be reached ({error}). Call hvd.shutdown() in a cell, which rebuilds the ring."
        ) from None
