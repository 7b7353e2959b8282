"""Explain why a cell makes no progress, or does not stop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass

from workbench.cluster.prompts import PROMPT_LOCATIONS
from workbench.ranks import capitalized, grouped, label, phrase
from workbench.wire import Message
from workbench.wire.prompt_messages import PromptKind
from workbench.wire.rank_messages import RankState, StateRequest

_log = logging.getLogger(__name__)

ASK_S = 0.5
"""Interval between requests for the ranks' states, once a cell has run for the threshold."""

_AT_PROMPT_S = 1.0
"""A collective that takes longer is reported while a rank waits for the user."""
_JOIN = "join()"
"""A rank that has no more batches waits in this call while the others train."""


class StallReport:
    """Asks the ranks of a cell for their states, and reports collectives that take too long.

    Parameters
    ----------
    after_s
        A collective that takes longer is explained; None for never.
    ring
        All ranks of the cluster; by default the ranks of the cell.
    explain_numbers
        As `KernelBackend.explain_numbers`.
    wait_limit
        As `KernelBackend.wait_limit`.

    Examples
    --------
    >>> report = StallReport([0, 1], 10.0, lambda rank, message: print(rank, message.stack))
    >>> report.check({0, 1}, now=100.0)
    ''
    >>> report.check({0, 1}, now=111.0)
    0 True
    1 True
    ''
    """

    def __init__(
        self,
        ranks: Iterable[int],
        after_s: float | None,
        send: Callable[[int, Message], None],
        ring: Iterable[int] = (),
        explain_numbers: Callable[[str], str] = str,
        wait_limit: str = "",
    ) -> None:
        self._wait_limit = wait_limit
        self._explain_numbers = explain_numbers
        self._ranks = tuple(ranks)
        self._ring = tuple(ring) or self._ranks
        self._after_s = after_s
        self._send = send
        self._began: float | None = None
        self._asked_at = 0.0
        self._states: dict[int, RankState] = {}
        self._reported: object = None

    def check(self, unfinished: set[int], now: float, *, soon: bool = False) -> str:
        """Ask the ranks, if it is time to; return the report, or an empty string.

        `soon` says that a rank waits for the user. Then ranks that wait for it are reported soon.
        """
        if self._began is None:
            self._began = now
        if self._after_s is None or now - self._asked_at < ASK_S:
            return ""
        if not soon and now - self._began < self._after_s:
            return ""
        text = self._report(unfinished)
        self._asked_at = now
        self._states.clear()
        for rank in unfinished:
            self._send(rank, StateRequest(stack=True, for_stall_report=True))
        return text

    def answer(self, rank: int, state: RankState) -> None:
        """Store a rank's answer to `check`."""
        self._states[rank] = state

    def _report(self, unfinished: set[int]) -> str:
        """Return a report about the ranks that wait too long, unless it was reported before."""
        assert self._after_s is not None
        asking = {
            rank: state.prompt
            for rank, state in self._states.items()
            if rank in unfinished and state.prompt
        }
        after_s = min(self._after_s, _AT_PROMPT_S) if asking else self._after_s
        waiting = {
            rank: state
            for rank, state in self._states.items()
            if rank in unfinished
            and state.collective not in {None, _JOIN}
            and state.blocked_s >= after_s
        }
        if not waiting:
            self._reported = None
            return ""
        needed = self._needed(waiting)
        outside = sorted(needed - set(self._ranks))
        unanswering = sorted((unfinished & needed) - set(self._states))
        absent = {
            rank: state
            for rank, state in self._states.items()
            if rank in unfinished & needed and not state.collective
        }
        ended = sorted(set(self._ranks) & needed - unfinished)
        states = {rank: state for rank, state in self._states.items() if rank in needed}
        if not (absent or unanswering or ended or outside):  # the ranks that came last wait as well
            waiting = {rank: state for rank, state in states.items() if state.collective != _JOIN}
        situation = (frozenset(waiting), frozenset(absent), tuple(unanswering), tuple(ended))
        if situation == self._reported:
            return ""
        self._reported = situation
        _log.info(
            "ranks %s wait; absent: %s; silent: %s; ended: %s; outside: %s",
            *(sorted(waiting), sorted(absent), unanswering, ended, outside),
        )
        if asking and asking.keys() >= absent.keys() and not (outside or unanswering or ended):
            return self._prompt_report(waiting, asking)
        lines = [_progress_line(waiting), *_missing_lines(absent, unanswering, ended)]
        if outside:
            lines.append(_outside_line(outside))
        elif absent or unanswering or ended:
            lines.append(_CONTINUES)
        elif numbers := _different_numbers(states):
            lines.append(self._explain_numbers(numbers))
        else:
            lines += [_all_wait_line(states), _CONTINUES]
        return "\n".join(lines) + "\n"

    def _prompt_report(self, waiting: dict[int, RankState], asking: dict[int, PromptKind]) -> str:
        """Return a report about ranks that wait for ranks at a prompt."""
        tensors = {rank: str(state.collective) for rank, state in waiting.items()}
        waits = "; ".join(
            phrase(ranks, f"waits in {tensor!r}", f"wait in {tensor!r}")
            for tensor, ranks in grouped(tensors)
        )
        prompts = " and ".join(
            phrase(
                ranks,
                f"which is {PROMPT_LOCATIONS[kind]}",
                f"which are {PROMPT_LOCATIONS[kind]}",
            ).replace(" which", ", which")
            for kind, ranks in grouped(asking)
        )
        return f"{capitalized(waits)} for {prompts}. {self._wait_limit}".rstrip() + "\n"

    def _needed(self, waiting: dict[int, RankState]) -> set[int]:
        """Return the members of the collectives in which ranks wait."""
        groups = [state.members for state in waiting.values()]
        return {rank for group in groups for rank in (self._ring if group is None else group)}


_CONTINUES = "It goes on as soon as they come; interrupt the cell to free the ranks."


def _progress_line(waiting: dict[int, RankState]) -> str:
    since = max(state.blocked_s for state in waiting.values())
    tensors = {rank: str(state.collective) for rank, state in waiting.items()}
    text = "; ".join(f"{label(ranks)} in {tensor!r}" for tensor, ranks in grouped(tensors))
    return f"No progress for {since:.0f} s, waiting for other ranks: {text}."


def _missing_lines(
    absent: dict[int, RankState], silent: list[int], ended: list[int]
) -> Iterable[str]:
    for stack, ranks in grouped({rank: state.stack.rstrip() for rank, state in absent.items()}):
        subject = phrase(ranks, "is missing; it is at", "are missing; they are at")
        yield f"{capitalized(subject)}:\n{stack}"
    if silent:
        subject = phrase(
            silent,
            "is missing and does not answer: its process is",
            "are missing and do not answer: their processes are",
        )
        yield f"{capitalized(subject)} stopped, or in code that holds Python's lock."
    if ended:
        subject = phrase(ended, "has ended", "have ended")
        yield f"{capitalized(subject)} the cell already and will not join this collective."


def _outside_line(outside: list[int]) -> str:
    subject = phrase(
        outside,
        "does not run this cell, but the collective needs it",
        "do not run this cell, but the collective needs them",
    )
    return f"{capitalized(subject)}: it never ends. Interrupt the cell, and run it without --ranks."


def _all_wait_line(states: dict[int, RankState]) -> str:
    tensors = {state.collective for state in states.values()}
    if len(tensors) > 1:
        return (
            "All ranks wait, in different collectives: each must be called by all, in the "
            "same order where it has no name."
        )
    return "All ranks are in it: it is running, or the network between them is down."


def _different_numbers(states: dict[int, RankState]) -> str:
    """Return the numbers of a collective without a name that never ends; empty if it may end."""
    numbers = {rank: state.collective_number for rank, state in sorted(states.items())}
    if None in numbers.values() or len(set(numbers.values())) < 2:
        return ""
    return ", ".join(f"{number} on {phrase(ranks)}" for number, ranks in grouped(numbers))


GRACE_S = 4.0
"""Time limit for a rank that may never end the cell."""
PENDING_S = 10.0
"""Time limit for a rank that loads or computes, so that Python has not raised the interrupt yet."""
ENDING_S = 60.0
"""Time limit for a rank that has ended its code, and prepares its error or value."""
_FRESH_S = 2.0
_NOTICE_S = 3.0
_PATIENCE_S = {"pending": PENDING_S, "ending": ENDING_S, "": ENDING_S}
_SILENT = ("did not react and still runs it", "did not react and still run it")
_ACTIVITIES = {
    "ignored": ("did not react, for the cell has replaced the handler of SIGINT",) * 2,
    "raised": ("has caught the interrupt and goes on", "have caught the interrupt and go on"),
    "pending": (
        "did not react: it is in code that cannot be interrupted",
        "did not react: they are in code that cannot be interrupted",
    ),
    "ending": ("is making its error or value ready", "are making their errors or values ready"),
    "": ("is about to end it", "are about to end it"),
}
"""The activity of one rank, and of several, by the stage of the interrupt."""
_ENDED = (
    "has ended it, and what it wrote is still being shown",
    "have ended it, and what they wrote is still being shown",
)


@dataclass(frozen=True)
class _Answer:
    """A rank's answer, and the time of its arrival."""

    arrived: float
    stage: str
    raised_s: float
    position: str


class Stopping:
    """Decides how long to wait for the ranks of a cell after its interrupt.

    `StuckRankMonitor` asks the ranks for their states. `ended` has the ranks that have ended the
    cell, even if their output is still being shown.

    Examples
    --------
    >>> stopping = Stopping({1})
    >>> stopping.should_wait([0]), stopping.outcome([1])
    (True, 'rank 1 has ended it, and what it wrote is still being shown')
    """

    def __init__(self, ended: Container[int]) -> None:
        self._ended = ended
        self._began = time.monotonic()
        self._shown = False
        self._answers: dict[int, _Answer] = {}

    @property
    def age_s(self) -> float:
        """Seconds since the stop began."""
        return time.monotonic() - self._began

    def answer(self, rank: int, state: RankState) -> None:
        """Store a rank's answer about its state."""
        position = state.stack.strip() or self._position(rank)
        self._answers[rank] = _Answer(
            time.monotonic(), state.interrupt_stage, state.raised_s, position
        )

    def should_wait(self, unfinished: Iterable[int]) -> bool:
        """Return whether one of the ranks may end soon."""
        return any(self._may_end_soon(rank) for rank in unfinished)

    def notice(self, unfinished: Iterable[int]) -> str:
        """Return one line about the ranks that have not ended, once and only after some time."""
        if self._shown or self.age_s < _NOTICE_S:
            return ""
        self._shown = True
        return f"Stopping, {self.outcome(unfinished)}. Stop again to go on without waiting.\n"

    def outcome(self, unfinished: Iterable[int]) -> str:
        """Return a description of the activities of the ranks that have not ended."""
        activities = {rank: self._activity(rank) for rank in unfinished}
        return "; ".join(phrase(ranks, *words) for words, ranks in grouped(activities))

    def positions(self, unfinished: Iterable[int]) -> str:
        """Return the positions in the code of the ranks that have not ended."""
        positions = {rank: self._position(rank) for rank in unfinished if rank not in self._ended}
        return "\n".join(
            f"{label(ranks)} {'is' if len(ranks) == 1 else 'are'} at:\n  {position}"
            for position, ranks in grouped(positions)
            if position
        )

    def _may_end_soon(self, rank: int) -> bool:
        if rank in self._ended:
            return True
        answer = self._fresh(rank)
        if answer is None:
            return self.age_s < GRACE_S
        if answer.stage == "raised":  # the cell may be cleaning up
            return answer.raised_s < GRACE_S
        return self.age_s < _PATIENCE_S.get(answer.stage, GRACE_S)

    def _activity(self, rank: int) -> tuple[str, str]:
        if rank in self._ended:
            return _ENDED
        answer = self._fresh(rank)
        return _SILENT if answer is None else _ACTIVITIES.get(answer.stage, _SILENT)

    def _position(self, rank: int) -> str:
        return self._answers[rank].position if rank in self._answers else ""

    def _fresh(self, rank: int) -> _Answer | None:
        answer = self._answers.get(rank)
        return answer if answer and time.monotonic() - answer.arrived < _FRESH_S else None


def stop_outcome(stopping: Stopping | None, unfinished: Iterable[int]) -> str:
    """Return how the stop of a cell has ended, with the activities of ranks that still run it."""
    if not unfinished or stopping is None:
        return "it was interrupted there, and variables are kept"
    return (
        f"{stopping.outcome(unfinished)}. Variables are kept, and the cluster is "
        "ready again when it ends; %cluster restart replaces it instead.\n"
        f"{stopping.positions(unfinished)}"
    ).rstrip()


def stack_text(stacks: Mapping[int, str]) -> str:
    """Return the Python stacks of ranks as text; equal stacks are shown once.

    Examples
    --------
    >>> print(stack_text({0: "  line 3", 1: "  line 3"}))
    ranks 0-1 were at:
      line 3
    """
    return "\n".join(
        f"{phrase(ranks, 'was', 'were')} at:\n{text}" for text, ranks in grouped(stacks) if text
    )
