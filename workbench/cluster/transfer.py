"""Transfers values between the kernel and its ranks, in chunks.

Each rank pickles in its main thread, called through ipyparallel; the bytes use the control
channel. A transfer fails if a rank, an agent or the controller ends, after an interrupt, and
after a time without progress. Names are set at its end, on all ranks or on none.
"""

from __future__ import annotations

import itertools
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

_OF_ONE_RANK = {"rank", "local_rank"}
_OF_EVERY_RANK = {"world_size", "device"}
_CHUNK_BYTES = 1 << 20
_WINDOW = 8
"""The number of unconfirmed chunks to or from one rank."""
_AGAIN_S = 1.0
"""After this time without progress, chunks are sent or requested again."""
_TICK_S = 0.05
_GRACE_S = 4.0
_NOTICED_S = 1.0
"""How long it takes at most until the end of a process is known."""
_SHOW_S = 1.0
"""The first progress is printed after this time, the next after twice that, and so on."""
_MB = 1e6
_numbers = itertools.count(-int(time.time()), -1)
"""Unique among cells and kernels: a rank interrupts the cell or transfer with this number."""


def new_number() -> int:
    """Return a number that no cell and no other transfer has."""
    return next(_numbers)


class Transfer:
    """One push or pull.

    Parameters
    ----------
    lost
        Returns why ranks can no longer answer, by rank.
    what
        A description for progress and errors, such as ``"push x"``.
    timeout_s
        The time limit without progress.
    late
        Called with a rank that was given up and has answered later, in ipyparallel's thread.
    number
        Its number; by default a new one.
    """

    def __init__(
        self,
        processes: ClusterProcesses,
        ranks: tuple[int, ...],
        lost: Callable[[], dict[int, str]],
        what: str,
        timeout_s: float,
        late: Callable[[int], None],
        number: int | None = None,
    ) -> None:
        self._number = new_number() if number is None else number
        self._processes = processes
        self._ranks = ranks
        self._lost = lost
        self._what = what
        self._timeout_s = timeout_s
        self._late = late
        self._monitor = StuckRankMonitor(self._number, processes.engines.send)
        self._arrived = threading.Event()
        self._calls: dict[int, Future[Any]] = {}
        self._payloads: dict[int, Payload] = {}
        self._asked = dict.fromkeys(ranks, 0)
        self._done = dict.fromkeys(ranks, 0)

    def push(self, payload: Payload, names: list[str]) -> None:
        """Set names on the ranks to the values in `payload`.

        Raise `UsageError` if a rank cannot read one of them, `RanksFailed` if a rank was lost, and
        `CellTimeout` if nothing moved for the time limit.
        """
        with self._following():
            self._payloads = dict.fromkeys(self._ranks, payload)
            self._move(self._put_chunk)
            errors = {r: why for r, why in self._call("unpack", names).items() if why}
            if errors:
                raise UsageError(f"{self._what}: {_unreadable(errors)}")
            uninterrupted(lambda: self._call("commit"))

    def pull(self, names: list[str]) -> dict[int, tuple[Payload, dict[str, str]]]:
        """Return the values of names as bytes, and the names of their types, by rank.

        Raise `UsageError` if a rank has no such name or the value cannot be pickled, and errors as
        `push` does.
        """
        with self._following():
            answers = self._call("pack", names)
            self._refuse(answers)
            self._payloads = self._allocated({r: one.sizes for r, one in answers.items()})
            self._move(self._get_chunk)
            return {rank: (self._payloads[rank], answers[rank].types) for rank in self._ranks}

    def fetch(self, sizes: dict[int, int]) -> dict[int, bytes]:
        """Return bytes that the ranks have ready under the number of this transfer, by rank.

        `sizes` are their lengths. Raise errors as `push` does.
        """
        with self._following():
            self._payloads = self._allocated({rank: [size] for rank, size in sizes.items()})
            self._move(self._get_chunk, quiet=True)
            return {rank: payload.stream for rank, payload in self._payloads.items()}

    def receive(self, rank: int, chunk: Chunk) -> None:
        """Receive a chunk, or the confirmation of one, in the channel's thread."""
        payload = self._payloads.get(rank)
        if chunk.transfer != self._number or payload is None:
            return
        if chunk.offset != self._done[rank]:
            return  # an earlier chunk was lost; this one will be sent again
        if chunk.data:
            payload.write(chunk.offset, chunk.data)
        self._done[rank] = min(chunk.offset + _CHUNK_BYTES, payload.total)
        self._arrived.set()

    @contextmanager
    def _following(self) -> Iterator[None]:
        """Receive the ranks' messages in the body; if it fails, interrupt the ranks.

        At the end they delete what they have received.
        """
        self._processes.chunk_receivers[self._number] = self.receive
        try:
            yield
        except BaseException:
            uninterrupted(self._give_up)
            raise
        finally:
            for rank in self._ranks:
                self._processes.engines.send(rank, DropTransfer(self._number))
            del self._processes.chunk_receivers[self._number]

    def _give_up(self) -> None:
        pending = [rank for rank, call in self._calls.items() if not call.done()]
        self._monitor.interrupt(pending)
        deadline = time.monotonic() + _GRACE_S
        while pending and time.monotonic() < deadline:
            time.sleep(_TICK_S)
            gone = self._lost()
            pending = [r for r in pending if r not in gone and not self._calls[r].done()]
        self._processes.engines.members.give_up(pending)
        for rank in pending:
            self._calls[rank].add_done_callback(partial(self._answered_late, rank))

    def _answered_late(self, rank: int, _: Future[Any]) -> None:
        self._late(rank)

    # steps

    def _put_chunk(self, payload: Payload, offset: int) -> Message:
        sizes = tuple(payload.sizes) if offset == 0 else ()
        return PutChunk(self._number, offset, sizes, payload.read(offset, _CHUNK_BYTES))

    def _get_chunk(self, _: Payload, offset: int) -> Message:
        return GetChunk(self._number, offset, _CHUNK_BYTES)

    def _move(self, message: Callable[[Payload, int], Message], *, quiet: bool = False) -> None:
        """Send or request chunks until all have arrived on all ranks."""
        total = sum(payload.total for payload in self._payloads.values())
        shown = _Progress(self._what, 0 if quiet else total)
        moved, last = 0, time.monotonic()
        again = last + _AGAIN_S
        while moved < total:
            for rank in self._ranks:
                self._fill_window(rank, message)
            self._arrived.wait(_TICK_S)
            self._arrived.clear()
            before, moved = moved, sum(self._done.values())
            now = time.monotonic()
            if moved > before:
                last, again = now, now + _AGAIN_S
                shown.show(moved)
            elif now > again:  # a message was lost while a rank connected
                self._asked, again = dict(self._done), now + _AGAIN_S
            self._check(last + self._timeout_s, [r for r in self._ranks if not self._complete(r)])

    def _complete(self, rank: int) -> bool:
        return self._done[rank] >= self._payloads[rank].total

    def _fill_window(self, rank: int, message: Callable[[Payload, int], Message]) -> None:
        payload = self._payloads[rank]
        limit = min(payload.total, self._done[rank] + _WINDOW * _CHUNK_BYTES)
        while (offset := self._asked[rank]) < limit:
            self._processes.engines.send(rank, message(payload, offset))
            self._asked[rank] = offset + _CHUNK_BYTES

    def _call(self, step: str, *given: Any) -> dict[int, Any]:
        """Call a step of the ranks' `Transfers`, and return the answers by rank."""

        def begin() -> None:
            for rank in self._ranks:
                self._calls[rank] = self._processes.engines.begin(
                    rank, "transfer", step, self._number, *given
                )

        uninterrupted(begin)
        deadline = time.monotonic() + self._timeout_s
        for call in self._calls.values():
            while not wait([call], _TICK_S).done:
                waiting = [rank for rank, one in self._calls.items() if not one.done()]
                self._check(deadline, waiting)
        try:
            return {rank: call.result() for rank, call in self._calls.items()}
        except Exception as error:  # noqa: BLE001 - whatever the rank raised
            until = time.monotonic() + _NOTICED_S
            while time.monotonic() < until:  # the end of a process may not be known yet
                self._check(until + 1.0, [])
                time.sleep(_TICK_S)
            name = getattr(error, "ename", type(error).__name__)
            failed = next(r for r, call in self._calls.items() if call.exception() is not None)
            raise failure({failed: RankError(name, str(error), "")}) from None

    def _check(self, deadline: float, waiting: Sequence[int]) -> None:
        lost = self._lost()
        gone = {rank: RankError("RankLost", lost[rank], "") for rank in self._ranks if rank in lost}
        if gone:
            raise failure(gone)
        if time.monotonic() > deadline:
            raise CellTimeout(
                f"{self._what}: no answer of {phrase(waiting)} for {self._timeout_s:g} s. "
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
                f"{self._what}: {total:.0f} MB do not fit into this kernel's memory. Pull smaller "
                "pieces, or from fewer ranks (--ranks)."
            ) from None

    def _refuse(self, answers: dict[int, PackedValues | MissingNames | UnpicklableValue]) -> None:
        """Raise `UsageError` if a rank has no such name, or cannot pickle its value."""
        missing = {r: one.names for r, one in answers.items() if isinstance(one, MissingNames)}
        if missing:
            text = {rank: ", ".join(map(repr, names)) for rank, names in missing.items()}
            parts = [f"no {names} on {phrase(ranks)}" for names, ranks in grouped(text)]
            raise UsageError(f"{self._what}: {'; '.join(parts)}. Set it there in a cell first.")
        refused = {r: one for r, one in answers.items() if isinstance(one, UnpicklableValue)}
        if refused:
            parts = [
                f"{value.name!r} on {phrase(ranks)} is of type {value.type_name}, which cannot be "
                f"pickled ({value.reason})"
                for value, ranks in grouped(refused)
            ]
            raise UsageError(
                f"{self._what}: {'; '.join(parts)}. Pull a picklable piece of it instead."
            )


class _Progress:
    """Prints the progress of a transfer: a line after one second, two, four..."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._began = time.monotonic()
        self._next = _SHOW_S

    def show(self, moved: int) -> None:
        """Print a line, if it is time to."""
        if time.monotonic() - self._began < self._next or moved >= self._total:
            return
        self._next *= 2
        sys.stdout.write(f"{self._what}: {moved / _MB:.0f} of {self._total / _MB:.0f} MB\n")
        sys.stdout.flush()


def _unreadable(errors: dict[int, str]) -> str:
    parts = [f"{phrase(ranks)} cannot read it ({why})" for why, ranks in grouped(errors)]
    if all(why.startswith(MemoryError.__name__) for why in errors.values()):
        cure = "Free memory there, or push smaller pieces."
    else:
        cure = "Classes of modules must be importable there; those of the notebook are sent along."
    return f"{'; '.join(parts)}. {cure}"


def check_pushed(names: dict[str, Any], backend: str) -> None:
    """Raise `UsageError` for a name that the cluster sets on each rank, and for a module."""
    for name, value in names.items():
        if name in _OF_ONE_RANK | _OF_EVERY_RANK | {backend_class(backend).module_name}:
            has = "each rank has its own" if name in _OF_ONE_RANK else "the cluster sets"
            raise UsageError(
                f"push {name}: {has} {name!r}, which its cells need. "
                "Push the value under another name."
            )
        if isinstance(value, ModuleType):
            raise UsageError(
                f"push {name}: a module ({value.__name__}), which cannot be sent. "
                "Import it in a cell on the ranks."
            )


def load_pulled(
    what: str, rank: int, names: list[str], payload: Payload, types: dict[str, str]
) -> dict[str, Any]:
    """Return the values that a rank has sent; raise `UsageError` if one cannot be loaded."""
    try:
        loaded, _ = values.load(payload, names, shared=False)
    except Exception as error:  # noqa: BLE001 - a user's class may raise anything
        kinds = ", ".join(f"{name!r} is of type {kind}" for name, kind in types.items())
        raise UsageError(
            f"{what}: this kernel cannot read the value of rank {rank} "
            f"({values.one_line(error)}; {kinds}). Make its class importable here, or pull a "
            "picklable piece of it."
        ) from None
    return {name: loaded[name] for name in names}
