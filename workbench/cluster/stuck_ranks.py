"""Finds ranks that wait forever in a collective, and frees them.

Such a rank cannot be interrupted. When the backend is shut down in any rank, the collectives of
every waiting rank raise an error, and the ring has to be formed again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from workbench.ranks import grouped, phrase
from workbench.wire import Message
from workbench.wire.prompt_messages import PromptKind
from workbench.wire.rank_messages import (
    UNIDENTIFIED,
    CellEnded,
    InterruptCell,
    RankState,
    ReleaseRanks,
    StateRequest,
)

ASK_S = 0.1
"""Interval between requests for the ranks' states; it begins when the first rank ends the cell."""
STUCK_S = 0.3
"""A rank waits forever if it still waits this long after another has failed or ended."""
DRAINED_S = 3.0
"""How long a rank may take to complete a collective that another rank has completed."""
INIT = "init()"
"""Reported as the collective of a rank whose cell initializes the backend."""
AGAIN_S = 1.0
"""A rank that still waits this long after it was freed is freed again, by force."""


class StuckRankMonitor:
    """Frees the ranks of one cell.

    Parameters
    ----------
    outside
        Ranks that do not run the cell.

    Attributes
    ----------
    released
        Whether ranks were freed.
    stall
        If ranks were freed because others had ended the cell, or did not run it: which waited for
        which.
    cure
        What to do about ranks that did not run it; empty for others.
    """

    def __init__(
        self, cell: int, send: Callable[[int, Message], None], outside: Iterable[int] = ()
    ) -> None:
        self._cell = cell
        self._send = send
        self._outside = frozenset(outside)
        self._asked = 0.0
        self._answers: dict[int, RankState] = {}
        self._in_init: set[int] = set()
        self._ended: dict[int, CellEnded] = {}
        self._ended_at: dict[int, float] = {}
        self._failed_at: float | None = None
        self._interrupted = False
        self._freed = float("-inf")
        self.released = False
        self.stall = self.cure = ""

    def interrupt(self, ranks: Iterable[int]) -> None:
        """Raise KeyboardInterrupt in the cell on these ranks, which may end it meanwhile."""
        self._interrupted = True
        for rank in tuple(ranks):
            self._send(rank, InterruptCell(self._cell))

    @property
    def started(self) -> dict[int, dict[int, int]]:
        """How many collectives ranks had started when they ended the cell, by process set.

        May be read in any thread, while ranks end the cell.
        """
        return {rank: dict(ended.calls) for rank, ended in tuple(self._ended.items())}

    def end(self, rank: int, ended: CellEnded, now: float) -> None:
        """Record that a rank has ended the cell, with or without an error."""
        if not (self._ended or ended.error):
            self._asked = now  # the others usually end at the same time: they are not asked
        self._ended[rank] = ended
        self._ended_at[rank] = now

    def check(
        self, unfinished: set[int], now: float, *, rank_failed: bool, peer_lost: bool = False
    ) -> None:
        """Ask where the unfinished ranks are; free them if all wait forever.

        After `rank_failed`, ranks that wait for that one wait forever; `peer_lost` says that a rank
        is lost.
        """
        if rank_failed and self._failed_at is None:
            self._failed_at = now
        if now - self._asked < ASK_S:
            return
        if rank_failed:
            failed = {rank for rank, ended in self._ended.items() if ended.error}
            failed = set() if peer_lost or self._interrupted else failed
            stuck = {rank for rank in unfinished if self._stuck_by_failure(rank, failed)}
        else:
            stuck = self._stuck_by_end(unfinished)
        if unfinished and stuck == unfinished and now - self._freed > AGAIN_S:
            if not rank_failed:
                self.stall = self._stall(unfinished)
            self.release(unfinished, peer_lost=peer_lost or self.released)
        self._asked = now
        self._answers.clear()
        for rank in unfinished | (frozenset() if rank_failed else self._outside):
            self._send(rank, StateRequest(now, stack=self._interrupted))
        for rank, ended in self._ended.items():
            if ended.outstanding and not rank_failed:
                self._send(rank, StateRequest(now, outstanding=True))

    def release(self, ranks: Iterable[int], *, peer_lost: bool = False) -> None:
        """Shut the backend down in every waiting rank, in case one of them misses the message.

        `peer_lost` says that a rank is lost, for which the backend itself would wait.
        """
        self.released = True
        self._freed = time.monotonic()
        for rank in tuple(ranks):
            self._send(rank, ReleaseRanks(self._cell, peer_lost, bool(self._in_init)))

    def answer(self, rank: int, state: RankState) -> None:
        """Receive a rank's answer."""
        self._answers[rank] = state
        (self._in_init.add if state.collective == INIT else self._in_init.discard)(rank)

    def at_prompt(self, ranks: Iterable[int]) -> dict[int, PromptKind]:
        """Return where ranks wait for the user, by their latest answers; ask these ranks again."""
        # a copy: the control channel's thread adds answers while this kernel attaches
        answers = tuple(self._answers.items())
        prompts = {rank: answer.prompt for rank, answer in answers if answer.prompt}
        for rank in ranks:
            self._send(rank, StateRequest())
        return {rank: prompts[rank] for rank in ranks if rank in prompts}

    def stacks(self, ranks: set[int], wait: Callable[[], None]) -> dict[int, str]:
        """Return the Python stacks of ranks by rank; `wait` processes messages for some time."""
        self._answers.clear()
        for rank in ranks:
            self._send(rank, StateRequest(stack=True))
        deadline = time.monotonic() + 1.0
        while set(self._answers) < ranks and time.monotonic() < deadline:
            wait()
        return {rank: answer.stack for rank, answer in self._answers.items()}

    def _stuck_by_failure(self, rank: int, failed: set[int]) -> bool:
        """Whether a rank waits for one that has failed, or for others that wait elsewhere.

        `failed` is empty if it is unknown, or no collective can succeed.
        """
        place = self._answers.get(rank)
        if not place or not place.collective or self._failed_at is None:
            return False
        waits, members = _waited_s(place, self._failed_at), place.members
        if not failed or members is None or failed & set(members):
            return waits >= STUCK_S
        return waits >= DRAINED_S and not self._under_way(place, members)

    def _under_way(self, place: RankState, members: Iterable[int]) -> bool:
        """Whether all ranks of the process set are in the collective."""
        its = [self._answers.get(member) for member in members]
        return all(other is not None and _collective(other) == _collective(place) for other in its)

    def _stuck_by_end(self, unfinished: set[int]) -> set[int]:
        """Return the ranks that wait for one without the cell, or for each other.

        It has ended the cell or does not run it.
        """
        places = {
            rank: place
            for rank in unfinished
            if (place := self._answers.get(rank)) and place.collective
        }
        found: set[int] = set()
        while more := {
            rank
            for rank, place in places.items()
            if rank not in found
            and (
                any(self._never_joins(ended, place) for ended in self._ended)
                or self._needs_outside(place)
                or any(_waits_elsewhere(other, places[other], place) for other in found)
            )
        }:
            found |= more
        return found

    def _never_joins(self, ended: int, place: RankState) -> bool:
        """Whether another rank waits for a rank that has ended the cell without its collective.

        A rank that has ended has either completed the collective, and the other will soon, or
        never called it, or left it running. Only the wait after that end counts.
        """
        if not self._is_missing(ended, place):
            return False
        called = self._ended[ended].calls.get(place.process_set, 0)
        waits = _waited_s(place, self._ended_at[ended])
        return waits >= (STUCK_S if place.calls > called else DRAINED_S)

    def _needs_outside(self, place: RankState) -> list[int]:
        """Return the ranks for which a rank waits although they run no cell; empty at first.

        Cells run one after another, so these ranks come to no cell while this one runs.
        """
        if place.collective in {INIT, UNIDENTIFIED} or place.blocked_s < DRAINED_S:
            return []
        members = self._outside if place.members is None else self._outside & set(place.members)
        states = {rank: self._answers[rank] for rank in members if rank in self._answers}
        return sorted(rank for rank, state in states.items() if state.cell is None)

    def _is_missing(self, ended: int, place: RankState) -> bool:
        """Whether a rank that ended the cell is needed, and has not left the collective open."""
        if place.members is not None and ended not in place.members:
            return False
        if not self._ended[ended].outstanding:
            return True
        left = self._answers.get(ended)
        return left is not None and place.collective not in left.outstanding

    def _stall(self, waiting: Iterable[int]) -> str:
        places = {rank: str(self._answers[rank].collective) for rank in sorted(waiting)}
        needed = [
            rank
            for rank in sorted(self._ended)
            if any(self._is_missing(rank, self._answers[other]) for other in places)
        ]
        outside = sorted({one for r in places for one in self._needs_outside(self._answers[r])})
        if needed or not outside:
            return f"{phrase(needed)} ended the cell while {waits(places)}."
        self.cure = "Run the cell without --ranks, or its collectives in a group of its ranks only."
        return f"{phrase(outside, 'does', 'do')} not run this cell, but {waits(places)}."


def _waits_elsewhere(other: int, its: RankState, place: RankState) -> bool:
    """Whether a rank waits in another collective than `place`, which needs it too."""
    if place.members is not None and other not in place.members:
        return False
    same = (its.collective, its.process_set) == (place.collective, place.process_set)
    return not same and min(its.blocked_s, place.blocked_s) >= DRAINED_S


def _collective(place: RankState) -> tuple[object, ...]:
    """Return what identifies the collective in which a rank waits."""
    return place.collective, place.process_set, place.collective_number


def _waited_s(place: RankState, since: float) -> float:
    """Return how long a rank had waited when it was asked, at most from `since` on."""
    return min(place.blocked_s, place.asked_s - since)


def waits(tensors: dict[int, str]) -> str:
    """Return a description of which ranks wait in which tensor."""
    return ", ".join(
        phrase(ranks, f"waits in {tensor!r}", f"wait in {tensor!r}")
        for tensor, ranks in grouped(tensors)
    )
