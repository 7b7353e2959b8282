"""Explains why a cell makes no progress, or does not stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass

from workbench.cluster.prompts import AT
from workbench.ranks import capitalized, grouped, label, phrase
from workbench.wire import Message
from workbench.wire.prompt_messages import PromptKind
from workbench.wire.rank_messages import RankState, StateRequest

ASK_S = 0.5
"""Time between the questions where ranks are, once a cell has run for the threshold."""

_AT_PROMPT_S = 1.0
"""A collective that takes longer is reported while a rank waits for the user."""
_JOIN = "join()"
"""A rank that has no more batches waits in it while the others train."""


class StallReport:
    """Asks the ranks of a cell where they are, and reports collectives that take too long.

    Parameters
    ----------
    after_s
        A collective that takes longer is explained; None for never.
    ring
        All ranks of the cluster; by default those of the cell.
    explain_numbers
        As `KernelBackend.explain_numbers`.
    wait_limit
        As `KernelBackend.wait_limit`.
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
        self._asked = 0.0
        self._places: dict[int, RankState] = {}
        self._reported: object = None

    def check(self, unfinished: set[int], now: float, *, soon: bool = False) -> str:
        """Ask the ranks, if it is time to; return the report, or an empty string.

        `soon` says that a rank waits for the user, for which others are reported to wait soon.
        """
        if self._began is None:
            self._began = now
        if self._after_s is None or now - self._asked < ASK_S:
            return ""
        if not soon and now - self._began < self._after_s:
            return ""
        text = self._report(unfinished)
        self._asked = now
        self._places.clear()
        for rank in unfinished:
            self._send(rank, StateRequest(stack=True, for_stall_report=True))
        return text

    def answer(self, rank: int, state: RankState) -> None:
        """Receive a rank's answer to `check`."""
        self._places[rank] = state

    def _report(self, unfinished: set[int]) -> str:
        assert self._after_s is not None
        asking = {r: p.prompt for r, p in self._places.items() if r in unfinished and p.prompt}
        after_s = min(self._after_s, _AT_PROMPT_S) if asking else self._after_s
        waiting = {
            rank: place
            for rank, place in self._places.items()
            if rank in unfinished
            and place.collective not in {None, _JOIN}
            and place.blocked_s >= after_s
        }
        if not waiting:
            self._reported = None
            return ""
        needed = self._needed(waiting)
        outside = sorted(needed - set(self._ranks))
        silent = sorted((unfinished & needed) - set(self._places))
        absent = {
            r: p for r, p in self._places.items() if r in unfinished & needed and not p.collective
        }
        ended = sorted(set(self._ranks) & needed - unfinished)
        places = {rank: place for rank, place in self._places.items() if rank in needed}
        if not (absent or silent or ended or outside):  # those that came last wait as well
            waiting = {r: place for r, place in places.items() if place.collective != _JOIN}
        state = (frozenset(waiting), frozenset(absent), tuple(silent), tuple(ended))
        if state == self._reported:
            return ""
        self._reported = state
        if asking and asking.keys() >= absent.keys() and not (outside or silent or ended):
            return self._at_prompt(waiting, asking)
        lines = [_waits(waiting)]
        lines += _missing(absent, silent, ended)
        if outside:
            what = phrase(
                outside,
                "does not run this cell, but the collective needs it",
                "do not run this cell, but the collective needs them",
            )
            lines.append(
                f"{capitalized(what)}: it never ends. Interrupt the cell, and run it without "
                "--ranks."
            )
            return "\n".join(lines) + "\n"
        numbers = "" if absent or silent or ended else _different_numbers(places)
        if numbers:
            lines.append(self._explain_numbers(numbers))
        else:
            if not (absent or silent or ended):
                lines.append(_all_wait(places))
            lines.append("It goes on as soon as they come; interrupt the cell to free the ranks.")
        return "\n".join(lines) + "\n"

    def _at_prompt(self, waiting: dict[int, RankState], asking: dict[int, PromptKind]) -> str:
        """Return which ranks wait for those that wait for the user."""
        tensors = {rank: str(place.collective) for rank, place in waiting.items()}
        who = "; ".join(
            phrase(ranks, f"waits in {tensor!r}", f"wait in {tensor!r}")
            for tensor, ranks in grouped(tensors)
        )
        at = " and ".join(
            phrase(ranks, f"which is {AT[kind]}", f"which are {AT[kind]}").replace(
                " which", ", which"
            )
            for kind, ranks in grouped(asking)
        )
        return f"{capitalized(who)} for {at}. {self._wait_limit}".rstrip() + "\n"

    def _needed(self, waiting: dict[int, RankState]) -> set[int]:
        """Return the members of the collectives in which ranks wait."""
        members = [place.members for place in waiting.values()]
        return {rank for its in members for rank in (self._ring if its is None else its)}


def _waits(waiting: dict[int, RankState]) -> str:
    since = max(place.blocked_s for place in waiting.values())
    tensors = {rank: str(place.collective) for rank, place in waiting.items()}
    text = "; ".join(f"{label(ranks)} in {tensor!r}" for tensor, ranks in grouped(tensors))
    return f"No progress for {since:.0f} s, waiting for other ranks: {text}."


def _missing(absent: dict[int, RankState], silent: list[int], ended: list[int]) -> Iterable[str]:
    for stack, ranks in grouped({rank: p.stack.rstrip() for rank, p in absent.items()}):
        what = phrase(ranks, "is missing; it is at", "are missing; they are at")
        yield f"{capitalized(what)}:\n{stack}"
    if silent:
        what = phrase(
            silent,
            "is missing and does not answer: its process is",
            "are missing and do not answer: their processes are",
        )
        yield f"{capitalized(what)} stopped, or in code that holds Python's lock."
    if ended:
        what = phrase(ended, "has ended", "have ended")
        yield f"{capitalized(what)} the cell already and will not join this collective."


def _all_wait(places: dict[int, RankState]) -> str:
    tensors = {place.collective for place in places.values()}
    if len(tensors) > 1:
        return (
            "All ranks wait, in different collectives: each must be called by all, in the "
            "same order where it has no name."
        )
    return "All ranks are in it: it is running, or the network between them is down."


def _different_numbers(places: dict[int, RankState]) -> str:
    """Return the numbers of a collective without a name that never ends; empty if it may end."""
    numbers = {rank: place.collective_number for rank, place in sorted(places.items())}
    if None in numbers.values() or len(set(numbers.values())) < 2:
        return ""
    return ", ".join(f"{number} on {phrase(ranks)}" for number, ranks in grouped(numbers))


GRACE_S = 4.0
"""For a rank that may never end the cell."""
PENDING_S = 10.0
"""For a rank in which Python has not raised the interrupt yet: it loads or computes."""
ENDING_S = 60.0
"""For a rank whose code has ended, and which prepares its error or value."""
_FRESH_S = 2.0
_TELL_S = 3.0
_PATIENCE_S = {"pending": PENDING_S, "ending": ENDING_S, "": ENDING_S}
_SILENT = ("did not react and still runs it", "did not react and still run it")
_DOES = {
    "ignored": ("did not react, for the cell has replaced the handler of SIGINT",) * 2,
    "raised": ("has caught the interrupt and goes on", "have caught the interrupt and go on"),
    "pending": (
        "did not react: it is in code that cannot be interrupted",
        "did not react: they are in code that cannot be interrupted",
    ),
    "ending": ("is making its error or value ready", "are making their errors or values ready"),
    "": ("is about to end it", "are about to end it"),
}
"""What one rank does, and what several do."""
_ENDED = (
    "has ended it, and what it wrote is still being shown",
    "have ended it, and what they wrote is still being shown",
)


@dataclass(frozen=True)
class _Answer:
    """A rank's answer, and when it arrived."""

    at: float
    stage: str
    raised_s: float
    place: str


class Stopping:
    """Decides how long to wait for the ranks of a cell after its interrupt.

    `StuckRankMonitor` asks the ranks what they do. `ended` are the ranks that have ended the cell,
    even if their output is still being shown.
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
        """Receive a rank's answer about what it does."""
        place = state.stack.strip() or self._place(rank)
        self._answers[rank] = _Answer(
            time.monotonic(), state.interrupt_stage, state.raised_s, place
        )

    def waits(self, unfinished: Iterable[int]) -> bool:
        """Return whether one of the ranks may end soon."""
        return any(self._may_end_soon(rank) for rank in unfinished)

    def text(self, unfinished: Iterable[int]) -> str:
        """Return one line about the ranks that have not ended, once and only after some time."""
        if self._shown or self.age_s < _TELL_S:
            return ""
        self._shown = True
        return f"Stopping, {self.outcome(unfinished)}. Stop again to go on without waiting.\n"

    def outcome(self, unfinished: Iterable[int]) -> str:
        """Return a description of what the ranks do that have not ended."""
        does = {rank: self._does(rank) for rank in unfinished}
        return "; ".join(phrase(ranks, *words) for words, ranks in grouped(does))

    def places(self, unfinished: Iterable[int]) -> str:
        """Return the positions in the code of the ranks that have not ended."""
        places = {rank: self._place(rank) for rank in unfinished if rank not in self._ended}
        return "\n".join(
            f"{label(ranks)} {'is' if len(ranks) == 1 else 'are'} at:\n  {place}"
            for place, ranks in grouped(places)
            if place
        )

    def _may_end_soon(self, rank: int) -> bool:
        if rank in self._ended:
            return True
        answer = self._fresh(rank)
        if answer is None:
            return self.age_s < GRACE_S
        if answer.stage == "raised":  # it may be cleaning up
            return answer.raised_s < GRACE_S
        return self.age_s < _PATIENCE_S.get(answer.stage, GRACE_S)

    def _does(self, rank: int) -> tuple[str, str]:
        if rank in self._ended:
            return _ENDED
        answer = self._fresh(rank)
        return _SILENT if answer is None else _DOES.get(answer.stage, _SILENT)

    def _place(self, rank: int) -> str:
        return self._answers[rank].place if rank in self._answers else ""

    def _fresh(self, rank: int) -> _Answer | None:
        answer = self._answers.get(rank)
        return answer if answer and time.monotonic() - answer.at < _FRESH_S else None


def stop_outcome(stopping: Stopping | None, unfinished: Iterable[int]) -> str:
    """Return how the stop of a cell has ended, with what the ranks do that still run it."""
    if not unfinished or stopping is None:
        return "it was interrupted there, and variables are kept"
    return (
        f"{stopping.outcome(unfinished)}. Variables are kept, and the cluster is "
        "ready again when it ends; %cluster restart replaces it instead.\n"
        f"{stopping.places(unfinished)}"
    ).rstrip()


def stack_text(stacks: Mapping[int, str]) -> str:
    """Return the Python stacks of ranks as text, equal ones once."""
    return "\n".join(
        f"{phrase(ranks, 'was', 'were')} at:\n{text}" for text, ranks in grouped(stacks) if text
    )
