"""One cell on its way through the ranks."""

from __future__ import annotations

import pickle
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from workbench.cluster.background import interrupts_later, uninterrupted
from workbench.cluster.failures import failure
from workbench.cluster.fold import Folded, Folder
from workbench.cluster.guard import Guard
from workbench.cluster.hang import HangWatch
from workbench.cluster.merge import OutputLog
from workbench.cluster.ranks import grouped, phrase
from workbench.cluster.sink import Sink, TextSink
from workbench.cluster.stopping import GRACE_S, Stopping
from workbench.errors import CellInterrupted, CellTimeout, RankError
from workbench.wire import Message

_TICK_S = 0.05
_HURRY_S = 3.0
"""Stopping a cell again hurries its ranks until then, and later goes on without them."""
_STEP_S = 0.25
"""How long output is taken before what else has come is attended to."""
_REPR_CHARACTERS = 400
"""Longer texts are cut in the repr of a result."""


@dataclass(frozen=True)
class Kept:
    """Stands for a value that stayed in its rank.

    Attributes
    ----------
    reason
        Why it was not sent.
    """

    reason: str

    def __repr__(self) -> str:
        return f"<kept in its rank: {self.reason}>"


@dataclass
class RunResult:
    """What a cell gave.

    Attributes
    ----------
    output
        The text of all ranks, equal lines merged. Its order follows from what each
        rank said, and not from when it came. Of more than 200 million characters
        it has the beginning and the end, with a line between them that says so.
    values
        The last expression's value by rank; None where there was none, a
        `Kept` where it could not be sent.
    """

    output: str
    _values: dict[int, bytes | Kept | None] = field(repr=False)

    def __repr__(self) -> str:
        values = ", ".join(f"{rank}: {_short(value)}" for rank, value in self.values.items())
        return f"RunResult(values={{{values}}}, output={_short(self.output)})"

    @property
    def values(self) -> dict[int, Any]:
        """The last expression's value by rank, read when first asked for."""
        return {rank: _unpickle(value) for rank, value in sorted(self._values.items())}


def _short(value: object) -> str:
    """Return a value's text, of which the middle is left out where it is long."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a user's class may raise anything
        return f"<{type(value).__name__}, whose repr() raised {type(error).__name__}>"
    left_out = len(text) - _REPR_CHARACTERS
    if left_out <= 0:
        return text
    half = _REPR_CHARACTERS // 2
    return f"{text[:half]}... {left_out:,} characters ...{text[-half:]}"


def _unpickle(value: bytes | Kept | None) -> Any:
    if not isinstance(value, bytes):
        return value
    try:
        # from a rank of ours, over an authenticated channel
        return pickle.loads(value)  # noqa: S301
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a user's class may raise anything
        return Kept(f"this kernel cannot read it: {type(error).__name__}: {error}")


def acknowledge(send: Callable[[int, Message], None], rank: int, message: Message) -> None:
    """Let a rank write more, where this is output by whose mark it waits for that."""
    if "written" in message.content:
        content = {name: message.content[name] for name in ("cell", "written")}
        send(rank, Message("taken", content))


class CellRun:
    """A cell that was sent to its ranks; `wait` follows it to its end.

    Parameters
    ----------
    number
        The cell's number in its cluster.
    ranks
        Where it runs.
    sink
        Where its output goes, besides being kept.
    send
        Sends a message to a rank.
    lost
        Tells which ranks can no longer answer, and why.
    timeout_s
        After this long the ranks are interrupted; None for never.
    hang_after_s
        A collective that takes longer is explained in the output; None for never.
    ring
        All ranks of the cluster, of which others may not run the cell.
    """

    def __init__(
        self,
        number: int,
        ranks: tuple[int, ...],
        sink: Sink,
        *,
        send: Callable[[int, Message], None],
        lost: Callable[[], dict[int, str]],
        timeout_s: float | None,
        hang_after_s: float | None = None,
        ring: tuple[int, ...] = (),
    ) -> None:
        self.number = number
        self.ranks = ranks
        self.records: dict[int, int] = {}
        self.outstanding = 0
        self._initialized = True
        self.errors: dict[int, RankError] = {}
        self.calls: dict[int, Any] = {}
        self.guard = Guard(number, send)
        self._send = send
        self._watch = HangWatch(ranks, hang_after_s, send, ring)
        self._stopping: Stopping | None = None
        self._late: Callable[[int], None] | None = None
        self._delivering = threading.Lock()
        self._events: deque[tuple[int, Message]] = deque()
        self._answers: deque[tuple[int, Message]] = deque()
        """Where ranks are: taken before all output, which may be much and is then old."""
        self._came = dict.fromkeys(ranks, 0)
        self._taken = dict.fromkeys(ranks, 0)
        """Events of each rank; the first is counted where they are delivered."""
        self._written = True
        """Whether all that could be written is: nothing more is taken before."""
        self._marks: dict[int, Message] = {}
        """The latest output of each rank that is to hear that it was taken."""
        self._ended: set[int] = set()
        """The ranks whose end was delivered, whether or not it has been taken."""
        self._arrived = threading.Event()
        self._unfinished = set(ranks)
        self._values: dict[int, bytes | Kept | None] = {}
        self._folder = Folder(ranks)
        self._log = OutputLog(ranks)
        self._text = TextSink()
        self._sink = sink
        self._lost = lost
        self._torn = False
        self._timeout_s = timeout_s
        self._interrupts = 0
        """Calls of `interrupt` that `wait` has not handled yet."""

    @property
    def broken(self) -> bool:
        """Whether the ring must be formed anew before the next cell."""
        return self.guard.released or self.outstanding > 0 or not self._initialized

    @property
    def output(self) -> str:
        """The merged text, once every rank has ended."""
        return self._text.text

    @property
    def unfinished(self) -> tuple[int, ...]:
        """The ranks in which the cell has begun and not ended."""
        return tuple(sorted(self._unfinished)) if self.calls else ()

    def say(self, text: str) -> None:
        """Show what the kernel has to say after the cell has ended."""
        self._sink.note(text)

    @property
    def interrupted(self) -> bool:
        """Whether `interrupt` was called and `wait` has not handled it yet."""
        return self._interrupts > 0

    def interrupt(self) -> None:
        """Stop the cell as an interrupt in the thread that waits for it does, from any thread.

        A cell that was left because ranks still run it is interrupted there again.
        """
        if self._late is not None:
            self.guard.interrupt(self._unfinished)
            return
        self._interrupts += 1
        self._arrived.set()

    def deliver(self, rank: int, message: Message) -> None:
        """Take a message from a rank, in any thread."""
        with self._delivering:
            late = self._late
            if late is None:
                self._put(rank, message)
                self._arrived.set()
        if late is not None:
            acknowledge(self._send, rank, message)
        if late is not None and message.kind == "ended" and rank in self._unfinished:
            self._end(rank, message, time.monotonic())
            late(rank)

    def _put(self, rank: int, message: Message) -> None:
        if message.kind == "where":
            self._answers.append((rank, message))
            return
        self._events.append((rank, message))
        self._came[rank] += 1
        if message.kind == "ended":
            self._ended.add(rank)

    def leave(self, late: Callable[[int], None]) -> None:
        """Follow the cell no more; call `late`, in a thread, with each rank that ends later."""
        with self._delivering:
            self._late, events = late, list(self._events)
            self._events.clear()
        for event in events:
            self.deliver(*event)

    def wait(self, begin: Callable[[], None]) -> RunResult:
        """Show the output until every rank has ended, and return what came of it.

        Parameters
        ----------
        begin
            Begins the cell on its ranks: on all of them, even where it is interrupted.

        Raises
        ------
        RanksFailed, CellTimeout, CellInterrupted
            After every rank is free again.
        """
        try:
            uninterrupted(begin)
            self._follow(self._deadline())
        except KeyboardInterrupt:
            if not self.calls:
                raise CellInterrupted("the cell was interrupted before it began") from None
            self._stop("interrupted")
            raise CellInterrupted(
                f"the cell was interrupted on {phrase(self.ranks)}; {self._outcome()}"
            ) from None
        if self._unfinished:
            self._time_out()
        self._finish()
        if self.errors:
            raise failure(self.errors, released=self.guard.released, stall=self.guard.stall)
        return RunResult(self._text.text, self._values)

    def _time_out(self) -> None:
        unfinished = tuple(sorted(self._unfinished))
        stacks = self.guard.stacks(set(unfinished), self._step)
        self._stop("timed out")
        stuck = "\n".join(
            f"{phrase(ranks, 'was', 'were')} at:\n{text}" for text, ranks in grouped(stacks) if text
        )
        raise CellTimeout(
            f"the cell was not done after {self._timeout_s:g} s on {phrase(unfinished)}; "
            f"{self._outcome()}\n{stuck}".rstrip(),
            unfinished,
        )

    def _outcome(self) -> str:
        if not self._unfinished or self._stopping is None:
            return "it was interrupted there, and variables are kept"
        return (
            f"{self._stopping.outcome(self._unfinished)}. Variables are kept, and the cluster is "
            "ready again when it ends; %cluster restart replaces it instead.\n"
            f"{self._stopping.places(self._unfinished)}"
        ).rstrip()

    def _deadline(self) -> float:
        return float("inf") if self._timeout_s is None else time.monotonic() + self._timeout_s

    def _follow(self, deadline: float) -> None:
        while self._unfinished and time.monotonic() < deadline:
            self._raise_interrupt()
            self._step(_TICK_S)
            self._drop_lost()
            self._explain(time.monotonic())
            if self.errors or len(self._unfinished) < len(self.ranks):
                now, sure = time.monotonic(), bool(self.errors)
                self.guard.look(self._unfinished, now, sure=sure, torn=self._torn)

    def _raise_interrupt(self) -> None:
        if self._interrupts:
            self._interrupts -= 1
            raise KeyboardInterrupt

    def _explain(self, now: float) -> None:
        """Say why the cell stands still, where it does."""
        self._note("" if self.errors else self._watch.look(self._unfinished, now))

    def _note(self, text: str) -> None:
        """Show what the kernel itself has to say."""
        if text:
            self._write(float("inf"))
            self._log.note(text)
            self._sink.note(text)

    def _stop(self, why: str) -> None:
        """Interrupt the ranks that run, free those that wait, and follow them to their end."""
        self._stopping = Stopping(self._send, self._ended)
        self.errors.setdefault(-1, RankError(why, "", ""))
        again = False
        while True:
            try:
                self.guard.interrupt(self._unfinished)
                if again:
                    self.guard.release(self._unfinished, torn=self._torn)
                self._follow_stop(self._stopping)
                break
            except KeyboardInterrupt:
                again = True
                if self._stopping.age_s > _HURRY_S:
                    break
        self._finish()

    def _follow_stop(self, stopping: Stopping) -> None:
        """Follow the ranks as long as one of them is worth waiting for."""
        while self._unfinished and stopping.waits(self._unfinished):
            self._raise_interrupt()
            self._step(_TICK_S)
            self._drop_lost()
            self.guard.look(self._unfinished, time.monotonic(), sure=True, torn=self._torn)
            if stopping.age_s > GRACE_S and not self.guard.released:
                self.guard.release(self._unfinished, torn=self._torn)
            if self._unfinished:
                self._note(stopping.text(self._unfinished))

    def _step(self, timeout_s: float) -> None:
        """Take what has come, then write what is ready."""
        self._arrived.wait(timeout_s)
        self._arrived.clear()
        with interrupts_later():  # what has come must not get lost between here and there
            for _ in range(len(self._answers)):
                self._take_answer(*self._answers.popleft())
            until = time.monotonic() + _STEP_S
            while self._events and self._written and time.monotonic() < until:
                rank, message = self._events.popleft()
                self._take(rank, message)
                self._taken[rank] += 1
                if "written" in message.content:
                    self._marks[rank] = message
            self._write(time.monotonic(), time.monotonic() + _STEP_S)
            if self._written:
                self._acknowledge()
            if self._events or not self._written:
                self._arrived.set()

    def _acknowledge(self) -> None:
        """Let ranks write more, once what they wrote is dealt with."""
        while self._marks:
            acknowledge(self._send, *self._marks.popitem())

    def _take_answer(self, rank: int, message: Message) -> None:
        watch = message.content["watch"]
        if not watch:
            self.guard.answer(rank, message.content)
        if rank not in self._unfinished:
            return
        if watch:
            self._watch.answer(rank, message.content)
        elif self._stopping is not None:
            self._stopping.answer(rank, message.content)

    def _take(self, rank: int, message: Message) -> None:
        now = time.monotonic()
        if rank not in self._unfinished:
            return
        if message.kind == "output":
            self._take_output(rank, message, now)
        elif message.kind == "ended":
            self._end(rank, message, now)

    def _take_output(self, rank: int, message: Message, now: float) -> None:
        whole, at = message.payload[0].decode("utf-8", "replace"), 0
        log = self._log.ranks[rank]
        for kind, iteration, characters in message.content["segments"]:
            text = whole[at : at + characters]
            at += characters
            if kind == "display":
                self._folder.display(rank, text, now)
                log.display(text, iteration)
            else:
                self._folder.text(rank, kind, text, now)
                log.text(kind, text, iteration)

    def _end(self, rank: int, message: Message, now: float) -> None:
        content = message.content
        self._unfinished.discard(rank)
        self._folder.end(rank, now)
        self.records[rank] = content["records"]
        self._initialized &= content["initialized"]
        self.outstanding += content["outstanding"] if content["error"] else 0
        self.guard.end(rank, content, now)
        if content["error"]:
            self.errors[rank] = RankError(**content["error"])
        if content["kept"]:
            self._values[rank] = Kept(content["kept"])
        else:
            self._values[rank] = message.payload[0] if message.payload else None

    def _drop_lost(self) -> None:
        for rank, call in self.calls.items():
            if rank in self._unfinished and call.ready() and not call.successful():
                self._unfinished.discard(rank)
                self._folder.end(rank, time.monotonic())
                self.errors[rank] = RankError("RankFailed", str(call.exception()), "")
        for rank, why in self._lost().items():
            if rank in self._unfinished and self._taken[rank] == self._came[rank]:
                self._unfinished.discard(rank)
                self._folder.end(rank, time.monotonic())
                self.errors[rank] = RankError("RankLost", why, "")
                self._torn = True

    def _write(self, now: float, until: float = float("inf")) -> None:
        self._written = True
        for folded in self._folder.ready(now):
            self._sink.put(folded)
            if time.monotonic() > until:
                self._written = False
                break
        self._sink.poll()
        while self._written and (output := self._log.advance()):
            self._order(output)
            self._written = time.monotonic() <= until

    def _order(self, output: list[Folded]) -> None:
        for sink in (self._text, self._sink):
            sink.order(output)

    def _finish(self) -> None:
        for rank in self.ranks:
            self._folder.end(rank, time.monotonic())
        self._write(float("inf"))
        self._acknowledge()
        for output in self._log.rest():
            self._order(output)
            self._sink.poll()
        for sink in (self._text, self._sink):
            sink.settle(())
