"""Transfer values between the kernel and its ranks, in chunks.

Each rank pickles in its main thread, called through ipyparallel. The bytes use the control
channel. A transfer fails if a rank, an agent or the controller ends, after an interrupt, and
after a time without progress. Names are set at its end, on all ranks or on none.
"""

from __future__ import annotations

import itertools
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from workbench.cluster.backends import backend_class
from workbench.cluster.outcomes import failure
from workbench.cluster.stuck_ranks import StuckRankMonitor
from workbench.cluster.threads import uninterrupted
from workbench.errors import CellTimeout, RankError, UsageError
from workbench.ranks import grouped, phrase, ranks_text
from workbench.wire import Message, values
from workbench.wire.transfer_messages import (
    Chunk,
    DropTransfer,
    GetChunk,
    MissingNames,
    PackedValues,
    PutChunk,
    UnpicklableValue,
)
from workbench.wire.values import Payload

if TYPE_CHECKING:
    from workbench.cluster.processes import ClusterProcesses

_log = logging.getLogger(__name__)

_OF_ONE_RANK = {"rank", "local_rank"}
_OF_EVERY_RANK = {"world_size", "device"}
_CHUNK_BYTES = 1 << 20
_WINDOW = 8
"""The number of unconfirmed chunks to or from one rank."""
_RETRY_S = 1.0
"""After this time without progress, chunks are sent or requested again."""
_TICK_S = 0.05
_GRACE_S = 4.0
_NOTICED_S = 1.0
"""The end of a process is known after this time at the latest."""
_SHOW_S = 1.0
"""The first progress is printed after this time, the next after twice that, and so on."""
_MB = 1e6
_numbers = itertools.count(-int(time.time()), -1)
"""Numbers of transfers. A rank interrupts the cell or transfer with a given number, so that the
numbers must be unique among cells and kernels."""


def new_number() -> int:
    """Return a number that no cell and no other transfer has.

    Examples
    --------
    >>> new_number() - new_number()
    1
    """
    return next(_numbers)


class Transfer:
    """One push or pull.

    Parameters
    ----------
    lost
        Returns why ranks can no longer answer, by rank.
    description
        A description for progress and errors, such as ``"push x"``.
    timeout_s
        The time limit without progress.
    on_late_answer
        Called with a rank that was given up and has answered later, in ipyparallel's thread.
    number
        The number of the transfer; by default a new number.
    """

    def __init__(
        self,
        processes: ClusterProcesses,
        ranks: tuple[int, ...],
        lost: Callable[[], dict[int, str]],
        description: str,
        timeout_s: float,
        on_late_answer: Callable[[int], None],
        number: int | None = None,
    ) -> None:
        self._number = new_number() if number is None else number
        self._processes = processes
        self._ranks = ranks
        self._lost = lost
        self._description = description
        self._timeout_s = timeout_s
        self._on_late_answer = on_late_answer
        self._monitor = StuckRankMonitor(self._number, processes.engines.send)
        self._arrived = threading.Event()
        self._calls: dict[int, Future[Any]] = {}
        self._payloads: dict[int, Payload] = {}
        self._requested_bytes = dict.fromkeys(ranks, 0)
        self._done_bytes = dict.fromkeys(ranks, 0)

    def push(self, payload: Payload, names: list[str]) -> None:
        """Set names on the ranks to the values in `payload`.

        Raise `UsageError` if a rank cannot read a value, `RanksFailed` if a rank was lost, and
        `CellTimeout` if there was no progress within the time limit.
        """
        with self._following():
            self._payloads = dict.fromkeys(self._ranks, payload)
            self._move(self._put_chunk)
            reasons = self._call("unpack", names)
            errors = {rank: reason for rank, reason in reasons.items() if reason}
            if errors:
                raise UsageError(f"{self._description}: {_unreadable(errors)}")
            uninterrupted(lambda: self._call("commit"))

    def pull(self, names: list[str]) -> dict[int, tuple[Payload, dict[str, str]]]:
        """Return the values of names as bytes, and the names of their types, by rank.

        Raise `UsageError` if a rank has no such name or cannot pickle its value. Raise the errors
        of `push` too.
        """
        with self._following():
            answers = self._call("pack", names)
            self._refuse(answers)
            self._payloads = self._allocated(
                {rank: answer.sizes for rank, answer in answers.items()}
            )
            self._move(self._get_chunk)
            return {rank: (self._payloads[rank], answers[rank].types) for rank in self._ranks}

    def fetch(self, sizes: dict[int, int]) -> dict[int, bytes]:
        """Return the bytes that the ranks offer under the number of this transfer, by rank.

        `sizes` are their lengths. Raise the errors of `push`.
        """
        with self._following():
            self._payloads = self._allocated({rank: [size] for rank, size in sizes.items()})
            self._move(self._get_chunk, quiet=True)
            return {rank: payload.stream for rank, payload in self._payloads.items()}

    def receive(self, rank: int, chunk: Chunk) -> None:
        """Handle a chunk, or the confirmation of a chunk, in the channel's thread."""
        payload = self._payloads.get(rank)
        if chunk.transfer != self._number or payload is None:
            return
        if chunk.offset != self._done_bytes[rank]:
            return  # an earlier chunk was lost; this chunk will be sent again
        if chunk.data:
            payload.write(chunk.offset, chunk.data)
        self._done_bytes[rank] = min(chunk.offset + _CHUNK_BYTES, payload.total)
        self._arrived.set()

    @contextmanager
    def _following(self) -> Iterator[None]:
        """Receive the ranks' messages in the body; if the body fails, interrupt the ranks.

        At the end, the ranks delete the data that they have received.
        """
        self._processes.chunk_receivers[self._number] = self.receive
        began = time.monotonic()
        try:
            yield
        except BaseException:
            uninterrupted(self._give_up)
            raise
        finally:
            for rank in self._ranks:
                self._processes.engines.send(rank, DropTransfer(self._number))
            del self._processes.chunk_receivers[self._number]
            _log.debug("transfer %d took %.2f s", self._number, time.monotonic() - began)

    def _give_up(self) -> None:
        pending = [rank for rank, call in self._calls.items() if not call.done()]
        self._monitor.interrupt(pending)
        _log.info("giving up transfer %d; unfinished ranks: %s", self._number, pending)
        deadline = time.monotonic() + _GRACE_S
        while pending and time.monotonic() < deadline:
            time.sleep(_TICK_S)
            lost = self._lost()
            pending = [
                rank for rank in pending if rank not in lost and not self._calls[rank].done()
            ]
        self._processes.engines.members.give_up(pending)
        for rank in pending:
            self._calls[rank].add_done_callback(partial(self._answered_late, rank))

    def _answered_late(self, rank: int, _: Future[Any]) -> None:
        self._on_late_answer(rank)

    # steps

    def _put_chunk(self, payload: Payload, offset: int) -> Message:
        sizes = tuple(payload.sizes) if offset == 0 else ()
        return PutChunk(self._number, offset, sizes, payload.read(offset, _CHUNK_BYTES))

    def _get_chunk(self, _: Payload, offset: int) -> Message:
        return GetChunk(self._number, offset, _CHUNK_BYTES)

    def _move(self, message: Callable[[Payload, int], Message], *, quiet: bool = False) -> None:
        """Send or request chunks until all have arrived on all ranks."""
        total = sum(payload.total for payload in self._payloads.values())
        progress = _Progress(self._description, 0 if quiet else total)
        moved = 0
        progressed = time.monotonic()
        retry = progressed + _RETRY_S
        while moved < total:
            for rank in self._ranks:
                self._fill_window(rank, message)
            self._arrived.wait(_TICK_S)
            self._arrived.clear()
            before = moved
            moved = sum(self._done_bytes.values())
            now = time.monotonic()
            if moved > before:
                progressed = now
                retry = now + _RETRY_S
                progress.show(moved)
            elif now > retry:  # a message was lost while a rank connected
                _log.debug("transfer %d: no progress, sending chunks again", self._number)
                self._requested_bytes = dict(self._done_bytes)
                retry = now + _RETRY_S
            unfinished = [rank for rank in self._ranks if not self._complete(rank)]
            self._check(progressed + self._timeout_s, unfinished)

    def _complete(self, rank: int) -> bool:
        return self._done_bytes[rank] >= self._payloads[rank].total

    def _fill_window(self, rank: int, message: Callable[[Payload, int], Message]) -> None:
        payload = self._payloads[rank]
        limit = min(payload.total, self._done_bytes[rank] + _WINDOW * _CHUNK_BYTES)
        while (offset := self._requested_bytes[rank]) < limit:
            self._processes.engines.send(rank, message(payload, offset))
            self._requested_bytes[rank] = offset + _CHUNK_BYTES

    def _call(self, step: str, *arguments: Any) -> dict[int, Any]:
        """Call a step of the ranks' `Transfers`, and return the answers, by rank."""

        def begin() -> None:
            for rank in self._ranks:
                self._calls[rank] = self._processes.engines.begin(
                    rank, "transfer", step, self._number, *arguments
                )

        uninterrupted(begin)
        deadline = time.monotonic() + self._timeout_s
        for call in self._calls.values():
            while not wait([call], _TICK_S).done:
                waiting = [rank for rank, other in self._calls.items() if not other.done()]
                self._check(deadline, waiting)
        try:
            return {rank: call.result() for rank, call in self._calls.items()}
        except Exception as error:  # noqa: BLE001 - whatever the rank raised
            until = time.monotonic() + _NOTICED_S
            while time.monotonic() < until:  # the end of a process may not be known yet
                self._check(until + 1.0, [])
                time.sleep(_TICK_S)
            name = getattr(error, "ename", type(error).__name__)
            failed = next(
                rank for rank, call in self._calls.items() if call.exception() is not None
            )
            raise failure({failed: RankError(name, str(error), "")}) from None

    def _check(self, deadline: float, waiting: Sequence[int]) -> None:
        lost = self._lost()
        errors = {
            rank: RankError("RankLost", lost[rank], "") for rank in self._ranks if rank in lost
        }
        if errors:
            raise failure(errors)
        if time.monotonic() > deadline:
            raise CellTimeout(
                f"{self._description}: no answer of {phrase(waiting)} for {self._timeout_s:g} s. "
                "Give more time with timeout=, or replace what does not answer with %cluster "
                f"restart --ranks {ranks_text(waiting)}.",
                tuple(waiting),
            )

    def _allocated(self, sizes: dict[int, list[int]]) -> dict[int, Payload]:
        try:
            return {rank: Payload.empty(lengths) for rank, lengths in sizes.items()}
        except MemoryError:
            total = sum(map(sum, sizes.values())) / _MB
            raise UsageError(
                f"{self._description}: {total:.0f} MB do not fit into this kernel's memory. Pull "
                "smaller pieces, or from fewer ranks (--ranks)."
            ) from None

    def _refuse(self, answers: dict[int, PackedValues | MissingNames | UnpicklableValue]) -> None:
        """Raise `UsageError` if a rank has no such name, or cannot pickle its value."""
        missing = {
            rank: ", ".join(map(repr, answer.names))
            for rank, answer in answers.items()
            if isinstance(answer, MissingNames)
        }
        if missing:
            parts = [f"no {names} on {phrase(ranks)}" for names, ranks in grouped(missing)]
            raise UsageError(
                f"{self._description}: {'; '.join(parts)}. Set it there in a cell first."
            )
        refused = {
            rank: answer for rank, answer in answers.items() if isinstance(answer, UnpicklableValue)
        }
        if refused:
            parts = [
                f"{value.name!r} on {phrase(ranks)} is of type {value.type_name}, which cannot be "
                f"pickled ({value.reason})"
                for value, ranks in grouped(refused)
            ]
            raise UsageError(
                f"{self._description}: {'; '.join(parts)}. Pull a picklable piece of it instead."
            )


class _Progress:
    """Prints the progress of a transfer: a line after one second, two, four..."""

    def __init__(self, description: str, total: int) -> None:
        self._description = description
        self._total = total
        self._began = time.monotonic()
        self._next = _SHOW_S

    def show(self, moved: int) -> None:
        """Print a line, if it is time to."""
        if time.monotonic() - self._began < self._next or moved >= self._total:
            return
        self._next *= 2
        sys.stdout.write(f"{self._description}: {moved / _MB:.0f} of {self._total / _MB:.0f} MB\n")
        sys.stdout.flush()


def _unreadable(errors: dict[int, str]) -> str:
    parts = [f"{phrase(ranks)} cannot read it ({reason})" for reason, ranks in grouped(errors)]
    if all(reason.startswith(MemoryError.__name__) for reason in errors.values()):
        fix = "Free memory there, or push smaller pieces."
    else:
        fix = "Classes of modules must be importable there; those of the notebook are sent along."
    return f"{'; '.join(parts)}. {fix}"


def check_pushed(names: dict[str, Any], backend: str) -> None:
    """Raise `UsageError` for a name that the cluster sets on each rank, and for a module.

    Examples
    --------
    >>> check_pushed({"learning_rate": 0.1}, "ddp")
    >>> check_pushed({"rank": 0}, "ddp")
    Traceback (most recent call last):
    ...
    workbench.errors.UsageError: push rank: each rank has its own 'rank', which its cells need. ...
    """
    for name, value in names.items():
        if name in _OF_ONE_RANK | _OF_EVERY_RANK | {backend_class(backend).module_name}:
            origin = "each rank has its own" if name in _OF_ONE_RANK else "the cluster sets"
            raise UsageError(
                f"push {name}: {origin} {name!r}, which its cells need. "
                "Push the value under another name."
            )
        if isinstance(value, ModuleType):
            raise UsageError(
                f"push {name}: a module ({value.__name__}), which cannot be sent. "
                "Import it in a cell on the ranks."
            )


def load_pulled(
    description: str, rank: int, names: list[str], payload: Payload, types: dict[str, str]
) -> dict[str, Any]:
    """Return the values that a rank has sent; raise `UsageError` if a value cannot be loaded."""
    try:
        loaded, _ = values.load(payload, names, shared=False)
    except Exception as error:  # noqa: BLE001 - a user's class may raise anything
        type_texts = ", ".join(f"{name!r} is of type {kind}" for name, kind in types.items())
        raise UsageError(
            f"{description}: this kernel cannot read the value of rank {rank} "
            f"({values.one_line(error)}; {type_texts}). Make its class importable here, or pull a "
            "picklable piece of it."
        ) from None
    return {name: loaded[name] for name in names}
