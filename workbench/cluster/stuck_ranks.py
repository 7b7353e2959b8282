"""Find ranks that wait forever in a collective, and free them.

Such a rank cannot be interrupted. When the backend is shut down in any rank, the collectives of
every waiting rank raise an error, and the ring has to be formed again.
"""

from __future__ import annotations

import logging
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

_log = logging.getLogger(__name__)

ASK_S = 0.1
"""Interval between requests for the ranks' states; it begins when the first rank ends the cell."""
STUCK_S = 0.3
"""A rank waits forever if it still waits this long after another has failed or ended."""
MIN_WAIT_S = 3.0
"""A rank that has waited less may still complete a collective that another has completed."""
INIT = "init()"
"""Reported as the collective of a rank while its cell initializes the backend."""
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
        A sentence that says which ranks waited for which, if ranks were freed because others had
        ended the cell or did not run it; otherwise empty.
    fix
        What to do about ranks that did not run the cell; otherwise empty.
    """

    def __init__(
        self, cell: int, send: Callable[[int, Message], None], outside: Iterable[int] = ()
    ) -> None:
        self._cell = cell
        self._send = send
        self._outside = frozenset(outside)
        self._asked_at = 0.0
        self._answers: dict[int, RankState] = {}
        self._in_init: set[int] = set()
        self._ended: dict[int, CellEnded] = {}
        self._ended_at: dict[int, float] = {}
        self._failed_at: float | None = None
        self._interrupted = False
        self._freed_at = float("-inf")
        self.released = False
        self.stall = ""
        self.fix = ""

    def interrupt(self, ranks: Iterable[int]) -> None:
        """Raise KeyboardInterrupt in the cell on these ranks, unless they have ended it."""
        self._interrupted = True
        for rank in tuple(ranks):
            self._send(rank, InterruptCell(self._cell))

    @property
    def started(self) -> dict[int, dict[int, int]]:
        """The number of started collectives at the end of the cell, by rank and process set.

        May be read in any thread, while ranks end the cell.
        """
        return {rank: dict(ended.calls) for rank, ended in tuple(self._ended.items())}

    def end(self, rank: int, ended: CellEnded, now: float) -> None:
        """Record that a rank has ended the cell, with or without an error."""
        if not (self._ended or ended.error):
            # the other ranks usually end at the same time, so they are not asked yet
            self._asked_at = now
        self._ended[rank] = ended
        self._ended_at[rank] = now

    def check(
        self, unfinished: set[int], now: float, *, rank_failed: bool, peer_lost: bool = False
    ) -> None:
        """Ask the unfinished ranks for their states; free them if all wait forever.

        After `rank_failed`, ranks that wait for the failed rank wait forever. `peer_lost` says that
        a rank is lost.
        """
        if rank_failed and self._failed_at is None:
            self._failed_at = now
        if now - self._asked_at < ASK_S:
            return
        if rank_failed:
            failed = {rank for rank, ended in self._ended.items() if ended.error}
            failed = set() if peer_lost or self._interrupted else failed
            stuck = {rank for rank in unfinished if self._stuck_by_failure(rank, failed)}
        else:
            stuck = self._stuck_by_end(unfinished)
        if unfinished and stuck == unfinished and now - self._freed_at > AGAIN_S:
            if not rank_failed:
                self.stall = self._stall(unfinished)
            self.release(unfinished, peer_lost=peer_lost or self.released)
        self._asked_at = now
        self._answers.clear()
        for rank in unfinished | (frozenset() if rank_failed else self._outside):
            self._send(rank, StateRequest(now, stack=self._interrupted))
        for rank, ended in self._ended.items():
            if ended.outstanding and not rank_failed:
                self._send(rank, StateRequest(now, outstanding=True))

    def release(self, ranks: Iterable[int], *, peer_lost: bool = False) -> None:
        """Shut the backend down in every waiting rank, because a rank may miss the message.

        `peer_lost` says that a rank is lost; the backend itself would wait for it.
        """
        waiting = tuple(ranks)
        self.released = True
        self._freed_at = time.monotonic()
        for rank in waiting:
            self._send(rank, ReleaseRanks(self._cell, peer_lost, bool(self._in_init)))
        _log.info("freeing ranks %s from collectives; a rank is lost: %s", waiting, peer_lost)

    def answer(self, rank: int, state: RankState) -> None:
        """Store a rank's answer to a `StateRequest`."""
        self._answers[rank] = state
        if state.collective == INIT:
            self._in_init.add(rank)
        else:
            self._in_init.discard(rank)

    def at_prompt(self, ranks: Iterable[int]) -> dict[int, PromptKind]:
        """Return the prompts of ranks that wait for the user, by rank; ask these ranks again."""
        # this is a copy, because the control channel's thread adds answers during an attach
        answers = tuple(self._answers.items())
        prompts = {rank: answer.prompt for rank, answer in answers if answer.prompt}
        for rank in ranks:
            self._send(rank, StateRequest())
        return {rank: prompts[rank] for rank in ranks if rank in prompts}

    def stacks(self, ranks: set[int], wait: Callable[[], None]) -> dict[int, str]:
        """Return the Python stacks of ranks, by rank; `wait` processes messages for some time."""
        self._answers.clear()
        for rank in ranks:
            self._send(rank, StateRequest(stack=True))
        deadline = time.monotonic() + 1.0
        while set(self._answers) < ranks and time.monotonic() < deadline:
            wait()
        return {rank: answer.stack for rank, answer in self._answers.items()}

    def _stuck_by_failure(self, rank: int, failed: set[int]) -> bool:
        """Return whether a rank waits for a failed rank, or for ranks that wait elsewhere.

        `failed` is empty if it is unknown, or no collective can succeed.
        """
        state = self._answers.get(rank)
        if not state or not state.collective or self._failed_at is None:
            return False
        waited_s = _waited_s(state, self._failed_at)
        members = state.members
        if not failed or members is None or failed & set(members):
            return waited_s >= STUCK_S
        return waited_s >= MIN_WAIT_S and not self._is_complete(state, members)

    def _is_complete(self, state: RankState, members: Iterable[int]) -> bool:
        """Return whether all ranks of the process set are in the collective of `state`."""
        answers = [self._answers.get(member) for member in members]
        collective = _collective(state)
        return all(other is not None and _collective(other) == collective for other in answers)

    def _stuck_by_end(self, unfinished: set[int]) -> set[int]:
        """Return the ranks that wait for a rank without the cell, or for each other.

        A rank without the cell has ended the cell, or does not run it.
        """
        states = {
            rank: state
            for rank in unfinished
            if (state := self._answers.get(rank)) and state.collective
        }
        stuck: set[int] = set()
        while more := {
            rank
            for rank, state in states.items()
            if rank not in stuck
            and (
                any(self._never_joins(ended, state) for ended in self._ended)
                or self._idle_ranks_needed(state)
                or any(_waits_elsewhere(other, states[other], state) for other in stuck)
            )
        }:
            stuck |= more
        return stuck

    def _never_joins(self, ended: int, state: RankState) -> bool:
        """Return whether the rank `ended` will never join the collective of another rank's `state`.

        The rank `ended` has ended the cell. If it has completed the collective, the other rank will
        soon complete it too. If it left the collective running, the other rank may complete it.
        Otherwise it never called the collective. Only the wait after the end of the cell counts.
        """
        if not self._is_missing(ended, state):
            return False
        called = self._ended[ended].calls.get(state.process_set, 0)
        waited_s = _waited_s(state, self._ended_at[ended])
        return waited_s >= (STUCK_S if state.calls > called else MIN_WAIT_S)

    def _idle_ranks_needed(self, state: RankState) -> list[int]:
        """Return the ranks that this rank's collective needs, and that run no cell.

        The list is empty until the rank has waited for `MIN_WAIT_S`. Cells run one after another,
        so these ranks run no cell until this cell has ended.
        """
        if state.collective in {INIT, UNIDENTIFIED} or state.blocked_s < MIN_WAIT_S:
            return []
        members = self._outside if state.members is None else self._outside & set(state.members)
        states = {rank: self._answers[rank] for rank in members if rank in self._answers}
        return sorted(rank for rank, other in states.items() if other.cell is None)

    def _is_missing(self, ended: int, state: RankState) -> bool:
        """Return whether a collective needs the rank `ended`, which has not left it running."""
        if state.members is not None and ended not in state.members:
            return False
        if not self._ended[ended].outstanding:
            return True
        answer = self._answers.get(ended)
        return answer is not None and state.collective not in answer.outstanding

    def _stall(self, waiting: Iterable[int]) -> str:
        tensors = {rank: str(self._answers[rank].collective) for rank in sorted(waiting)}
        needed = [
            rank
            for rank in sorted(self._ended)
            if any(self._is_missing(rank, self._answers[other]) for other in tensors)
        ]
        outside = sorted(
            {rank for other in tensors for rank in self._idle_ranks_needed(self._answers[other])}
        )
        if needed or not outside:
            return f"{phrase(needed)} ended the cell while {_waiting_text(tensors)}."
        self.fix = "Run the cell without --ranks, or its collectives in a group of its ranks only."
        return f"{phrase(outside, 'does', 'do')} not run this cell, but {_waiting_text(tensors)}."


def _waits_elsewhere(other: int, other_state: RankState, state: RankState) -> bool:
    """Return whether the rank `other` waits elsewhere, while the collective of `state` needs it."""
    if state.members is not None and other not in state.members:
        return False
    is_same = (other_state.collective, other_state.process_set) == (
        state.collective,
        state.process_set,
    )
    return not is_same and min(other_state.blocked_s, state.blocked_s) >= MIN_WAIT_S


def _collective(state: RankState) -> tuple[object, ...]:
    """Return the identity of the collective in which a rank waits."""
    return state.collective, state.process_set, state.collective_number


def _waited_s(state: RankState, since: float) -> float:
    """Return how long a rank had waited when it was asked; the wait before `since` is ignored."""
    return min(state.blocked_s, state.asked_s - since)


def _waiting_text(tensors: dict[int, str]) -> str:
    """Return a description of which ranks wait in which tensor.

    Examples
    --------
    >>> _waiting_text({0: "loss", 1: "loss", 2: "grad"})
    "ranks 0-1 wait in 'loss', rank 2 waits in 'grad'"
    """
    return ", ".join(
        phrase(ranks, f"waits in {tensor!r}", f"wait in {tensor!r}")
        for tensor, ranks in grouped(tensors)
    )
