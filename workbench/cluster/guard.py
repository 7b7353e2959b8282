"""Watches the ranks of a running cell: who is stuck because of whom, and frees them.

A rank that waits in a collective cannot be interrupted; it is freed by
shutting Horovod down in any one rank, after which every waiting rank raises
HorovodInternalError, and the ring has to be formed anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from workbench.cluster.ranks import grouped, phrase
from workbench.wire import Message

ASK_S = 0.1
"""How often ranks are asked where they are, once there is a reason to."""
STUCK_S = 0.3
"""A rank that still waits so long after another has failed, or left it alone, waits for ever."""
DRAINED_S = 3.0
"""How long the last bytes of a collective may travel that another rank has completed."""
INIT = "init()"
"""What a rank waits in that has called ``hvd.init``."""
AGAIN_S = 1.0
"""A rank that still waits so long after it was freed is freed again, by force."""


class Guard:
    """Frees the ranks of one cell.

    Parameters
    ----------
    cell
        The cell's number.
    send
        Sends a message to a rank.

    Attributes
    ----------
    released
        Whether ranks were freed.
    stall
        Which ranks had ended the cell while which waited for them, where that is
        why ranks were freed.
    """

    def __init__(self, cell: int, send: Callable[[int, Message], None]) -> None:
        self._cell = cell
        self._send = send
        self._asked = 0.0
        self._answers: dict[int, dict[str, Any]] = {}
        self._in_init: set[int] = set()
        self._ended: dict[int, dict[str, Any]] = {}
        self._ended_at: dict[int, float] = {}
        self._sure_at: float | None = None
        self._interrupted = False
        self._freed = float("-inf")
        self.released = False
        self.stall = ""

    def interrupt(self, ranks: Iterable[int]) -> None:
        """Raise KeyboardInterrupt in the cell on these ranks."""
        self._interrupted = True
        for rank in ranks:
            self._send(rank, Message("interrupt", {"cell": self._cell}))

    def end(self, rank: int, content: dict[str, Any], now: float) -> None:
        """Take note that a rank has ended the cell, with an error or without."""
        self._ended[rank] = content
        self._ended_at[rank] = now

    def look(self, unfinished: set[int], now: float, *, sure: bool, torn: bool = False) -> None:
        """Ask where the unfinished ranks are; free them where all are stuck for good.

        Parameters
        ----------
        sure
            A rank has failed, rather than ended.
        torn
            A rank is gone.
        """
        if sure and self._sure_at is None:
            self._sure_at = now
        if now - self._asked < ASK_S:
            return
        if sure:
            needed = None if torn or self._interrupted else self._failed()
            stuck = {rank for rank in unfinished if self._stuck_by_failure(rank, needed)}
        else:
            stuck = self._stuck_by_end(unfinished)
        if unfinished and stuck == unfinished and now - self._freed > AGAIN_S:
            if not sure:
                self.stall = self._stall(unfinished)
            self.release(unfinished, torn=torn or self.released)
        self._asked = now
        self._answers.clear()
        for rank in unfinished:
            self._send(rank, Message("where", {"asked": now}))
        for rank, content in self._ended.items():
            if content["outstanding"] and not sure:
                self._send(rank, Message("where", {"asked": now, "under_way": True}))

    def release(self, ranks: Iterable[int], *, torn: bool = False) -> None:
        """Shut Horovod down in every rank that waits; one would do, were it sure to hear.

        Parameters
        ----------
        torn
            A rank is gone, for which Horovod itself would wait.
        """
        self.released = True
        self._freed = time.monotonic()
        for rank in ranks:
            content = {"cell": self._cell, "torn": torn, "init": bool(self._in_init)}
            self._send(rank, Message("release", content))

    def answer(self, rank: int, content: dict[str, Any]) -> None:
        """Take a rank's answer."""
        self._answers[rank] = content
        (self._in_init.add if content["tensor"] == INIT else self._in_init.discard)(rank)

    def stacks(self, ranks: set[int], wait: Callable[[float], None]) -> dict[int, str]:
        """Ask for the Python stacks of ranks; `wait` lets answers come in."""
        self._answers.clear()
        for rank in ranks:
            self._send(rank, Message("where", {"stack": True}))
        deadline = time.monotonic() + 1.0
        while set(self._answers) < ranks and time.monotonic() < deadline:
            wait(0.05)
        return {rank: str(answer["stack"]) for rank, answer in self._answers.items()}

    def _failed(self) -> set[int] | None:
        """Return the ranks that have failed; None where that is not known, or goes for all."""
        return {rank for rank, ended in self._ended.items() if ended["error"]} or None

    def _stuck_by_failure(self, rank: int, needed: set[int] | None) -> bool:
        """Whether a rank waits for one that has failed, or for others that are elsewhere.

        Parameters
        ----------
        needed
            The ranks that have failed; None for all, each of which breaks every collective.
        """
        place = self._answers.get(rank)
        if not place or not place["tensor"] or self._sure_at is None:
            return False
        waits, members = _waited_s(place, self._sure_at), place["members"]
        if needed is None or members is None or needed & set(members):
            return waits >= STUCK_S
        return waits >= DRAINED_S and not self._under_way(place)

    def _under_way(self, place: dict[str, Any]) -> bool:
        """Whether all ranks of a collective's process set are in it."""
        its = [self._answers.get(member, {}) for member in place["members"]]
        same = ("tensor", "process_set", "number")
        return all(other.get(what) == place[what] for other in its for what in same)

    def _stuck_by_end(self, unfinished: set[int]) -> set[int]:
        """Return which ranks wait for one that has not called their collective, or for these."""
        places = {
            rank: place
            for rank in unfinished
            if (place := self._answers.get(rank)) and place["tensor"]
        }
        found: set[int] = set()
        while more := {
            rank
            for rank, place in places.items()
            if rank not in found
            and (
                any(self._never_joins(ended, place) for ended in self._ended)
                or any(_waits_elsewhere(other, places[other], place) for other in found)
            )
        }:
            found |= more
        return found

    def _never_joins(self, ended: int, place: dict[str, Any]) -> bool:
        """Whether a rank that has ended the cell is needed where another waits.

        Unless it has left the collective under way, it has either completed it,
        and the other only waits for the last bytes, or never called it. What the
        other has answered before that end came says nothing of it.
        """
        if place["members"] is not None and ended not in place["members"]:
            return False
        if self._ended[ended]["outstanding"]:
            left = self._answers.get(ended)
            if left is None or place["tensor"] in left["under_way"]:
                return False
        called = self._ended[ended]["calls"].get(str(place["process_set"]), 0)
        waits = _waited_s(place, self._ended_at[ended])
        return waits >= (STUCK_S if place["calls"] > called else DRAINED_S)

    def _stall(self, waiting: Iterable[int]) -> str:
        places = {rank: str(self._answers[rank]["tensor"]) for rank in sorted(waiting)}
        needed = [
            rank
            for rank in sorted(self._ended)
            if any(self._never_joins(rank, self._answers[other]) for other in places)
        ]
        return (
            f"{phrase(needed)} ended the cell while {waits(places)}. Call every collective on "
            "all ranks (the same number of batches on each), or hvd.join() after the loop."
        )


def _waits_elsewhere(other: int, its: dict[str, Any], place: dict[str, Any]) -> bool:
    """Whether a rank waits in another collective than one that needs it too."""
    if place["members"] is not None and other not in place["members"]:
        return False
    same = its["tensor"] == place["tensor"] and its["process_set"] == place["process_set"]
    return not same and bool(min(its["blocked_s"], place["blocked_s"]) >= DRAINED_S)


def _waited_s(place: dict[str, Any], since: float) -> float:
    """Return for how long a rank had waited when it was asked; not more than since a moment."""
    return float(min(place["blocked_s"], place["asked"] - since))


def waits(tensors: dict[int, str]) -> str:
    """Return which ranks wait in which tensor, in words."""
    return ", ".join(
        phrase(ranks, f"waits in {tensor!r}", f"wait in {tensor!r}")
        for tensor, ranks in grouped(tensors)
    )
