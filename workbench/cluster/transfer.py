"""Moving values between the kernel and its ranks: in chunks, and never without an end.

Pickling is called in each rank's main thread, through ipyparallel; the bytes
travel over the control channel. A transfer ends where a rank, an agent or the
controller ends, on an interrupt, and after a time without progress; the names
are set at its end, on all ranks or on none.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from workbench.cluster.background import uninterrupted
from workbench.cluster.failures import failure
from workbench.cluster.guard import Guard
from workbench.cluster.ranks import grouped, phrase, ranks_text
from workbench.errors import CellTimeout, RankError, UsageError
from workbench.wire import Message
from workbench.wire.values import Payload

if TYPE_CHECKING:
    from workbench.cluster.running import Running

_CHUNK_BYTES = 1 << 20
_WINDOW = 8
"""Chunks under way to or from one rank."""
_AGAIN_S = 1.0
"""After this long without progress, chunks are sent or asked for again."""
_TICK_S = 0.05
_GRACE_S = 4.0
_NOTICED_S = 1.0
"""Until then the end of a process is known."""
_SHOW_S = 1.0
"""After this time progress is printed, then after twice that, and so on."""
_MB = 1e6
_numbers = itertools.count(-int(time.time()), -1)
"""Below the numbers of cells, and no other kernel's: a rank interrupts what has the number."""


class Transfer:
    """One push or pull.

    Parameters
    ----------
    running
        The cluster's processes.
    ranks
        The ranks that take part.
    lost
        Returns which ranks can no longer answer, and why.
    what
        What is done, for progress and errors, such as ``"push x"``.
    timeout_s
        After this long without progress it fails.
    """

    def __init__(
        self,
        running: Running,
        ranks: tuple[int, ...],
        lost: Callable[[], dict[int, str]],
        what: str,
        timeout_s: float,
    ) -> None:
        self._number = next(_numbers)
        self._running = running
        self._ranks = ranks
        self._lost = lost
        self._what = what
        self._timeout_s = timeout_s
        self._guard = Guard(self._number, running.send)
        self._arrived = threading.Event()
        self._calls: dict[int, Any] = {}
        self._payloads: dict[int, Payload] = {}
        self._asked = dict.fromkeys(ranks, 0)
        self._done = dict.fromkeys(ranks, 0)

    def push(self, payload: Payload, names: list[str]) -> None:
        """Set names on the ranks to the values in `payload`.

        Raises
        ------
        UsageError
            A rank cannot read one of the values.
        RanksFailed
            A rank was lost.
        CellTimeout
            Nothing moved for the time limit.
        """
        with _Following(self):
            self._payloads = dict.fromkeys(self._ranks, payload)
            self._move(lambda offset: ("put", {"sizes": payload.sizes} if offset == 0 else {}))
            errors = {r: why for r, why in self._call("unpack", names).items() if why}
            if errors:
                raise UsageError(f"{self._what}: {_unreadable(errors)}")
            uninterrupted(lambda: self._call("commit"))

    def pull(self, names: list[str]) -> dict[int, tuple[Payload, dict[str, str]]]:
        """Return the values of names, still as bytes, and their types' names, by rank.

        Raises
        ------
        UsageError
            A rank has no such name, or the value cannot be pickled.
        RanksFailed, CellTimeout
            As for `push`.
        """
        with _Following(self):
            told = self._call("pack", names)
            self._refuse(told)
            self._payloads = {r: Payload.empty(answer["sizes"]) for r, answer in told.items()}
            self._move(lambda _: ("get", {"size": _CHUNK_BYTES}))
            return {rank: (self._payloads[rank], told[rank]["types"]) for rank in self._ranks}

    def receive(self, rank: int, message: Message) -> None:
        """Take a chunk, or the note that one has arrived; in the channel's thread."""
        content, payload = message.content, self._payloads.get(rank)
        if content["number"] != self._number or payload is None:
            return
        if content["offset"] != self._done[rank]:
            return  # one before it was lost, and it will come again
        if message.payload:
            payload.write(content["offset"], message.payload)
        self._done[rank] = min(content["offset"] + _CHUNK_BYTES, payload.total)
        self._arrived.set()

    def give_up(self) -> None:
        """Interrupt what the ranks do for it, and have them forget what has arrived."""
        pending = [rank for rank, call in self._calls.items() if not call.ready()]
        self._guard.interrupt(pending)
        deadline = time.monotonic() + _GRACE_S
        while pending and time.monotonic() < deadline:
            time.sleep(_TICK_S)
            gone = self._lost()
            pending = [r for r in pending if r not in gone and not self._calls[r].ready()]
        self._running.engines.give_up(pending)
        for rank in self._ranks:
            self._running.send(rank, Message("drop", {"number": self._number}))

    # steps

    def _move(self, message: Callable[[int], tuple[str, dict[str, Any]]]) -> None:
        """Send or ask for chunk after chunk on all ranks until all have arrived."""
        total = sum(payload.total for payload in self._payloads.values())
        shown = _Progress(self._what, total)
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
            elif now > again:  # a rank that was just connecting has not got it
                self._asked, again = dict(self._done), now + _AGAIN_S
            self._check(last + self._timeout_s, [r for r in self._ranks if not self._complete(r)])

    def _complete(self, rank: int) -> bool:
        return self._done[rank] >= self._payloads[rank].total

    def _fill_window(self, rank: int, message: Callable[[int], tuple[str, dict[str, Any]]]) -> None:
        payload = self._payloads[rank]
        limit = min(payload.total, self._done[rank] + _WINDOW * _CHUNK_BYTES)
        while (offset := self._asked[rank]) < limit:
            kind, content = message(offset)
            pieces = payload.read(offset, _CHUNK_BYTES) if kind == "put" else ()
            content = {"number": self._number, "offset": offset, **content}
            self._running.send(rank, Message(kind, content, pieces))
            self._asked[rank] = offset + _CHUNK_BYTES

    def _call(self, step: str, *given: Any) -> dict[int, Any]:
        """Call a step of the ranks' `Transfers`, and return the answers by rank."""

        def begin() -> None:
            for rank in self._ranks:
                self._calls[rank] = self._running.engines.transfer(rank, step, self._number, *given)

        uninterrupted(begin)
        deadline = time.monotonic() + self._timeout_s
        for call in self._calls.values():
            while not call.wait(_TICK_S):
                waiting = [rank for rank, one in self._calls.items() if not one.ready()]
                self._check(deadline, waiting)
        try:
            return {rank: call.get() for rank, call in self._calls.items()}
        except Exception as error:  # noqa: BLE001 - whatever the rank raised
            until = time.monotonic() + _NOTICED_S
            while time.monotonic() < until:  # what has ended may not be known yet
                self._check(until + 1.0, [])
                time.sleep(_TICK_S)
            name = getattr(error, "ename", type(error).__name__)
            failed = next(r for r, call in self._calls.items() if not call.successful())
            raise self._failed({failed: RankError(name, str(error), "")}) from None

    def _check(self, deadline: float, waiting: Sequence[int]) -> None:
        lost = self._lost()
        gone = {rank: RankError("RankLost", lost[rank], "") for rank in self._ranks if rank in lost}
        if gone:
            raise self._failed(gone)
        if time.monotonic() > deadline:
            raise CellTimeout(
                f"{self._what}: no answer of {phrase(waiting)} for {self._timeout_s:g} s. "
                "Give more time with timeout=, or replace what does not answer with %cluster "
                f"restart --ranks {ranks_text(waiting)}.",
                tuple(waiting),
            )

    def _failed(self, errors: dict[int, RankError]) -> Exception:
        return failure(errors, released=False)

    def _refuse(self, told: dict[int, dict[str, Any]]) -> None:
        """Raise `UsageError` where ranks have no such name, or cannot pickle it."""
        missing = {rank: tuple(one["missing"]) for rank, one in told.items() if "missing" in one}
        if missing:
            parts = [f"no {_quoted(names)} on {phrase(ranks)}" for names, ranks in grouped(missing)]
            raise UsageError(f"{self._what}: {'; '.join(parts)}. Set it there in a cell first.")
        refused = {r: tuple(one["unsendable"]) for r, one in told.items() if "unsendable" in one}
        if refused:
            parts = [
                f"{name!r} on {phrase(ranks)} is of type {kind}, which cannot be pickled ({why})"
                for (name, kind, why), ranks in grouped(refused)
            ]
            raise UsageError(f"{self._what}: {'; '.join(parts)}. Pull a plain part of it instead.")


class _Following:
    """Lets the ranks' messages reach a transfer, and gives it up where the body fails."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer

    def __enter__(self) -> None:
        self._transfer._running.transfer = self._transfer

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        transfer = self._transfer
        if kind is not None:
            uninterrupted(transfer.give_up)
        else:
            for rank in transfer._ranks:
                transfer._running.send(rank, Message("drop", {"number": transfer._number}))
        transfer._running.transfer = None


class _Progress:
    """Prints how far a transfer is: a line after one second, two, four..."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._began = time.monotonic()
        self._next = _SHOW_S

    def show(self, moved: int) -> None:
        """Print a line, where it is time to."""
        if time.monotonic() - self._began < self._next or moved >= self._total:
            return
        self._next *= 2
        sys.stdout.write(f"{self._what}: {moved / _MB:.0f} of {self._total / _MB:.0f} MB\n")
        sys.stdout.flush()


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _unreadable(errors: dict[int, str]) -> str:
    parts = [f"{phrase(ranks)} cannot read it ({why})" for why, ranks in grouped(errors)]
    return (
        f"{'; '.join(parts)}. Classes of modules must be importable there; "
        "those of the notebook are sent along."
    )
