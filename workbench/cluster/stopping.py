"""Which ranks of a cell that is being stopped are worth waiting for, and what to say of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Any

from workbench.cluster.ranks import grouped, label, phrase
from workbench.wire import Message

GRACE_S = 4.0
"""For a rank of which nothing shows that it will end soon."""
PENDING_S = 10.0
"""For one in which Python has not come to raise the interrupt: it loads a library, or computes."""
ENDING_S = 60.0
"""For one whose code has ended, and that makes its error or its value ready."""
_ASK_S = 0.25
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
"""What a rank does, and what several do."""
_ENDED = (
    "has ended it, and what it wrote is still being shown",
    "have ended it, and what they wrote is still being shown",
)


@dataclass(frozen=True)
class _Answer:
    """What a rank has answered, and when."""

    at: float
    stage: str
    raised_s: float
    place: str


class Stopping:
    """Follows the ranks of a cell from its interrupt on.

    Parameters
    ----------
    send
        Sends a message to a rank.
    ended
        The ranks that have ended the cell, even if their output has not been read yet.
    """

    def __init__(self, send: Callable[[int, Message], None], ended: Container[int] = ()) -> None:
        self._send = send
        self._ended = ended
        self._began = time.monotonic()
        self._asked = 0.0
        self._shown = False
        self._answers: dict[int, _Answer] = {}

    @property
    def age_s(self) -> float:
        """Seconds since the stop began."""
        return time.monotonic() - self._began

    def answer(self, rank: int, content: dict[str, Any]) -> None:
        """Take a rank's answer to ``where``."""
        place = content["stack"].strip() or self._place(rank)
        self._answers[rank] = _Answer(
            time.monotonic(), content["stage"], content["raised_s"], place
        )

    def waits(self, unfinished: Iterable[int]) -> bool:
        """Ask the ranks where they are; return whether one of them is worth waiting for."""
        ranks, now = list(unfinished), time.monotonic()
        if now - self._asked >= _ASK_S:
            self._asked = now
            for rank in ranks:
                self._send(rank, Message("where", {"stack": True}))
        return any(self._is_worth_it(rank) for rank in ranks)

    def text(self, unfinished: Iterable[int]) -> str:
        """Return, once it takes long, one line that says what is waited for."""
        if self._shown or self.age_s < _TELL_S:
            return ""
        self._shown = True
        return f"Stopping, {self.outcome(unfinished)}. Stop again to go on without waiting.\n"

    def outcome(self, unfinished: Iterable[int]) -> str:
        """Return what the ranks that have not ended do, each thing once."""
        does = {rank: self._does(rank) for rank in unfinished}
        return "; ".join(phrase(ranks, *words) for words, ranks in grouped(does))

    def places(self, unfinished: Iterable[int]) -> str:
        """Return where the code of the ranks is that have not ended."""
        places = {rank: self._place(rank) for rank in unfinished if rank not in self._ended}
        return "\n".join(
            f"{label(ranks)} {'is' if len(ranks) == 1 else 'are'} at:\n  {place}"
            for place, ranks in grouped(places)
            if place
        )

    def _is_worth_it(self, rank: int) -> bool:
        if rank in self._ended:
            return True
        answer = self._fresh(rank)
        if answer is None:
            return self.age_s < GRACE_S
        if answer.stage == "raised":  # what it does now may be to clean up
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
