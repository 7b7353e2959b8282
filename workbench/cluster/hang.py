"""Explains why a cell stands still: who is missing from which collective, and where it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from workbench.cluster.ranks import grouped, label, phrase
from workbench.wire import Message

ASK_S = 0.5
"""How often ranks are asked where they are, once a cell has run for the threshold."""

_JOIN = "join()"
"""A rank may wait in ``hvd.join`` as long as the others train."""


@dataclass(frozen=True)
class _Place:
    """Where a rank is: in a collective since a while, or in code of its own.

    Attributes
    ----------
    members
        The ranks that the collective needs; None for all.
    number
        By which Horovod matches it, where it has no name.
    """

    tensor: str | None
    blocked_s: float
    stack: str
    members: tuple[int, ...] | None = None
    number: int | None = None


class HangWatch:
    """Asks the ranks of one cell where they are, and says so where they wait too long.

    Parameters
    ----------
    ranks
        Those of the cell.
    after_s
        A collective that takes longer is explained; None for never.
    send
        Sends a message to a rank.
    ring
        All ranks of the cluster; those of the cell, where it is empty.
    """

    def __init__(
        self,
        ranks: Iterable[int],
        after_s: float | None,
        send: Callable[[int, Message], None],
        ring: Iterable[int] = (),
    ) -> None:
        self._ranks = tuple(ranks)
        self._ring = tuple(ring) or self._ranks
        self._after_s = after_s
        self._send = send
        self._began: float | None = None
        self._asked = 0.0
        self._places: dict[int, _Place] = {}
        self._told: object = None

    def look(self, unfinished: set[int], now: float) -> str:
        """Ask, where it is time to; return what there is to tell, or an empty string."""
        if self._began is None:
            self._began = now
        if self._after_s is None or now - self._began < self._after_s or now - self._asked < ASK_S:
            return ""
        told = self._tell(unfinished)
        self._asked = now
        self._places.clear()
        for rank in unfinished:
            self._send(rank, Message("where", {"stack": True, "watch": True}))
        return told

    def answer(self, rank: int, content: dict[str, Any]) -> None:
        """Take a rank's answer to `look`."""
        members = content.get("members")
        self._places[rank] = _Place(
            content["tensor"],
            content["blocked_s"],
            content["stack"],
            None if members is None else tuple(members),
            content.get("number"),
        )

    def _tell(self, unfinished: set[int]) -> str:
        assert self._after_s is not None
        waiting = {
            rank: place
            for rank, place in self._places.items()
            if rank in unfinished
            and place.tensor not in {None, _JOIN}
            and place.blocked_s >= self._after_s
        }
        if not waiting:
            self._told = None
            return ""
        needed = self._needed(waiting)
        outside = sorted(needed - set(self._ranks))
        silent = sorted((unfinished & needed) - set(self._places))
        absent = {
            r: p for r, p in self._places.items() if r in unfinished & needed and not p.tensor
        }
        ended = sorted(set(self._ranks) & needed - unfinished)
        state = (frozenset(waiting), frozenset(absent), tuple(silent), tuple(ended))
        if state == self._told:
            return ""
        self._told = state
        lines = [_waits(waiting)]
        lines += _missing(absent, silent, ended)
        if outside:
            what = phrase(
                outside,
                "does not run this cell, but the collective needs it",
                "do not run this cell, but the collective needs them",
            )
            lines.append(
                f"{what.capitalize()}: it never ends. Interrupt the cell, and run it without "
                "--ranks."
            )
            return "\n".join(lines) + "\n"
        here = {rank: place for rank, place in self._places.items() if rank in needed}
        numbered = "" if absent or silent or ended else _differently_numbered(here)
        if numbered:
            lines.append(numbered)
        else:
            if not (absent or silent or ended):
                lines.append(_all_wait(here))
            lines.append("It goes on as soon as they come; interrupt the cell to free the ranks.")
        return "\n".join(lines) + "\n"

    def _needed(self, waiting: dict[int, _Place]) -> set[int]:
        """Return the ranks that are in the collectives that others wait in."""
        members = [place.members for place in waiting.values()]
        return {rank for its in members for rank in (self._ring if its is None else its)}


def _waits(waiting: dict[int, _Place]) -> str:
    since = max(place.blocked_s for place in waiting.values())
    tensors = {rank: str(place.tensor) for rank, place in waiting.items()}
    told = "; ".join(f"{label(ranks)} in {tensor!r}" for tensor, ranks in grouped(tensors))
    return f"Standing still for {since:.0f} s, waiting for other ranks: {told}."


def _missing(absent: dict[int, _Place], silent: list[int], ended: list[int]) -> Iterable[str]:
    for stack, ranks in grouped({rank: p.stack.rstrip() for rank, p in absent.items()}):
        what = phrase(ranks, "is missing; it is at", "are missing; they are at")
        yield f"{what.capitalize()}:\n{stack}"
    if silent:
        what = phrase(
            silent,
            "is missing and does not answer: its process is",
            "are missing and do not answer: their processes are",
        )
        yield f"{what.capitalize()} stopped, or in code that holds Python's lock."
    if ended:
        what = phrase(ended, "has ended", "have ended")
        yield f"{what.capitalize()} the cell already and will not join this collective."


def _all_wait(places: dict[int, _Place]) -> str:
    tensors = {place.tensor for place in places.values()}
    if len(tensors) > 1:
        return (
            "All ranks wait, in different collectives: each must be called by all, in the "
            "same order where it has no name."
        )
    return "All ranks are in it: it is under way, or the network between them carries nothing."


def _differently_numbered(places: dict[int, _Place]) -> str:
    """Return why a collective without a name is never completed; empty where it may be."""
    numbers = {rank: place.number for rank, place in sorted(places.items())}
    if None in numbers.values() or len(set(numbers.values())) < 2:
        return ""
    told = ", ".join(f"{number} on {phrase(ranks)}" for number, ranks in grouped(numbers))
    return (
        "Every rank waits for the others, but they do not meet: Horovod matches collectives "
        f"without a name by how many a rank has started before ({told}), and process sets make "
        "that differ. Interrupt the cell and give the collective a name: name=..."
    )
