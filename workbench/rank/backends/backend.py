"""The base class of backends in a rank."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import torch

from workbench.rank.backends.transports import NcclLog
from workbench.rank.recording.patches import Hooks
from workbench.rank.recording.recorder import Recorder
from workbench.wire import Message
from workbench.wire.rank_messages import RingCheck
from workbench.wire.transport import Transport

ABORTED = "the ranks were asked to stop forming it"
"""The reason for not forming a ring after `Backend.abort_init`."""


class RingNotFormed(RuntimeError):
    """The ranks could not form a ring; another attempt may succeed."""


class Pending(NamedTuple):
    """Collectives of a rank that are not finished.

    Attributes
    ----------
    submitted
        Number of tensors that were ever submitted, by process set.
    operations
        Name and process set of each unfinished collective, by its handle.
    handles
        Handles of the collectives that the rank has not waited for, finished or not.
    """

    submitted: dict[int, int]
    operations: dict[Any, tuple[str, int]]
    handles: frozenset[Any] = frozenset()


class Backend(ABC):
    """Joins this process with others in a ring, the process group of their collectives.

    Methods are called in the main thread unless their docstring says otherwise.

    Attributes
    ----------
    hooks
        Hooks that record the collectives of this backend and of other libraries. They are
        installed while recording is on.
    waits
        Hooks that make waits pause as with recording, if the library's own waits do not. They are
        installed in a cell that is compared with recorded cells.
    """

    hooks: tuple[Hooks, ...]
    waits: tuple[Hooks, ...] = ()

    def __init__(self, recorder: Recorder, send: Callable[[Message], None]) -> None:
        self._recorder = recorder
        self._send = send
        self._transports_without_nccl: tuple[Transport, ...] = ()
        """Transports of the current ring, without NCCL."""
        self._nccl_log = NcclLog(gpu=torch.cuda.is_available())

    def begin_ring(self) -> None:
        """Discard the transports of earlier rings."""
        self._transports_without_nccl = ()
        self._nccl_log.begin_ring()

    def transports(self) -> tuple[Transport, ...]:
        """Return the transports of the current ring, as far as the libraries have reported them."""
        nccl = self._nccl_log.transport()
        transports = self._transports_without_nccl
        return transports if nccl is None else (*transports, nccl)

    @staticmethod
    @abstractmethod
    def versions() -> dict[str, str]:
        """Return the versions of the libraries that this backend uses, by their names for users."""

    @staticmethod
    @abstractmethod
    def poll(handle: Any) -> bool | int:
        """Return whether a collective is done; raise ValueError if its handle is not valid."""

    @abstractmethod
    def pending(self) -> Pending:
        """Return the collectives that are not finished or not waited for.

        Any thread may call this. The result is empty if the collectives are unknown.
        """

    @abstractmethod
    def install(self) -> None:
        """Replace functions that do not work in a notebook; called before the hooks' `install`."""

    @abstractmethod
    def settings(self, *args: Any) -> dict[str, str]:
        """Return the settings of this rank that the kernel needs to form a ring; may be empty.

        Parameters
        ----------
        args
            The arguments that this backend's class in the kernel sends to this rank.
        """

    @abstractmethod
    def init_ring(self, *args: Any) -> RingCheck:
        """Form a ring with the other ranks, and return the result of a first collective.

        Parameters
        ----------
        args
            The arguments that this backend's class in the kernel sends to this rank.

        Raises
        ------
        RingNotFormed
            The ring could not be formed; another call may succeed.
        """

    @abstractmethod
    def shutdown_ring(self, *, peer_lost: bool = False) -> None:
        """Leave the ring; optimizers can be used in the next ring.

        Parameters
        ----------
        peer_lost
            Whether a rank has ended, so that this rank must not wait for the others.
        """

    @abstractmethod
    def abort_init(self, ring: str) -> None:
        """Stop forming or leaving a ring that waits for a missing rank.

        Any thread may call this.

        Parameters
        ----------
        ring
            Name of the ring; empty for the current ring. Other rings are not affected, because
            the message may arrive late.
        """

    @abstractmethod
    def release(self, *, peer_lost: bool) -> None:
        """Start to end the ring, so that waiting collectives raise an error.

        Any thread may call this. `peer_lost` is as in `shutdown_ring`.
        """

    @abstractmethod
    def is_initialized(self) -> bool:
        """Return whether this rank is in a ring."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait until all ranks have called this."""

    @abstractmethod
    def allreduce(self, tensor: torch.Tensor, name: str) -> None:
        """Sum a tensor over all ranks, in place."""

    @abstractmethod
    def largest(self, number: float, name: str) -> float:
        """Return the maximum of a number over all ranks."""

    @abstractmethod
    def exchange(
        self, tensor: torch.Tensor, sent: list[int], out: torch.Tensor, got: list[int]
    ) -> None:
        """Send a part of a tensor to each rank, and receive from each; wait for both.

        Parameters
        ----------
        tensor, out
            The sent elements, and memory for the received elements. A backend may store the
            received elements elsewhere.
        sent, got
            The number of elements to each rank, and from each rank.
        """

    @abstractmethod
    def namespace(self) -> dict[str, Any]:
        """Return the variables that every cell has, such as ``rank`` and ``world_size``."""

    def receive(self, _message: Message) -> bool:
        """Handle a message in the outbox's thread; return whether it is for this backend."""
        return False

    def wait_of(self, _frame: FrameType | None) -> tuple[str, Any, int] | None:
        """Return the collective that a thread waits for, from its frames; None without a wait.

        The result is used for waits that no hook has reported.

        Returns
        -------
        tuple
            The name of a call without a tensor, such as ``"barrier()"``, or an empty string;
            the collective's handle; and when it was submitted, as ``time.perf_counter_ns()``,
            or 0 if that is unknown.
        """
        return None

    @abstractmethod
    def collective_of(self, frame: FrameType | None) -> tuple[str, int]:
        """Return the collective that a thread waits in, from its frames.

        Returns
        -------
        tuple
            The name of the collective, and the number of its process set; 0 for all ranks.
        """


def in_thread(work: Callable[..., None], *args: Any) -> threading.Thread:
    """Start a thread that calls a function to end or abort a ring; return the thread.

    Examples
    --------
    >>> in_thread(print, "aborting").join()
    aborting
    """
    thread = threading.Thread(target=work, args=args, name="workbench-release", daemon=True)
    thread.start()
    return thread


class CellCollectives:
    """Counts the collectives of the current cell."""

    def __init__(self, backend: Backend, recorder: Recorder) -> None:
        self._backend = backend
        self._recorder = recorder
        self._before = Pending({}, {})

    def begin_cell(self) -> None:
        """Store the collectives that earlier cells have started."""
        self._before = self._backend.pending()

    def outstanding(self) -> int:
        """Return the number of this cell's collectives that the rank has not waited for."""
        return len(self._backend.pending().handles - self._before.handles)

    def submitted(self) -> int:
        """Return the number of tensors that this cell has submitted in collectives.

        Only collectives that the backend counts are included. Barriers and similar calls are not.
        """
        before = self._before.submitted
        counts = self._backend.pending().submitted.items()
        started = sum(count - before.get(process_set, 0) for process_set, count in counts)
        return started - sum(self._recorder.waits.calls.values())

    def calls(self) -> dict[int, int]:
        """Return the number of collectives, barriers and similar calls that this cell has started.

        The numbers are by process set. Any thread may call this.
        """
        before = self._before.submitted
        calls = dict(self._recorder.waits.calls)
        for process_set, count in self._backend.pending().submitted.items():
            calls[process_set] = calls.get(process_set, 0) + count - before.get(process_set, 0)
        return calls
