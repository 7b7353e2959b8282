"""Watches the ranks of a running cell: who is stuck because of whom, and frees them.

A rank that waits in a collective cannot be interrupted; it is freed by
shutting Horovod down in any one rank, after which every waiting rank raises
HorovodInternalError, and the ring has to be formed anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from workbench.wire import Message

ASK_S = 0.1
"""How often ranks are asked where they are, once there is a reason to."""
STUCK_S = 0.3
"""A rank that waits this long for a rank that has failed will wait for ever."""
ENDED_STUCK_S = 3.0
"""The same for a rank whose cell has ended well: it may have left a large tensor under way."""


class Guard:
    """Frees the ranks of one cell.

    Parameters
    ----------
    cell
        The cell's number.
    send
        Sends a message to a rank.
    """

    def __init__(self, cell: int, send: Callable[[int, Message], None]) -> None:
        self._cell = cell
        self._send = send
        self._asked = 0.0
        self._answers: dict[int, dict[str, Any]] = {}
        self.released = False

    def interrupt(self, ranks: Iterable[int]) -> None:
        """Raise KeyboardInterrupt in the cell on these ranks."""
        for rank in ranks:
            self._send(rank, Message("interrupt", {"cell": self._cell}))

    def look(self, unfinished: set[int], now: float, *, sure: bool, torn: bool = False) -> None:
        """Ask where the unfinished ranks are; free them where all are stuck for good.

        Parameters
        ----------
        sure
            A rank has failed, rather than ended.
        torn
            A rank is gone.
        """
        if self.released or now - self._asked < ASK_S:
            return
        limit = STUCK_S if sure else ENDED_STUCK_S
        if unfinished and all(self._stuck(rank, limit) for rank in unfinished):
            self.release(unfinished, torn=torn)
            return
        self._asked = now
        self._answers.clear()
        for rank in unfinished:
            self._send(rank, Message("where", {}))

    def release(self, ranks: Iterable[int], *, torn: bool = False) -> None:
        """Shut Horovod down in every rank that waits; one would do, were it sure to hear.

        Parameters
        ----------
        torn
            A rank is gone, for which Horovod itself would wait.
        """
        self.released = True
        for rank in ranks:
            self._send(rank, Message("release", {"cell": self._cell, "torn": torn}))

    def answer(self, rank: int, content: dict[str, Any]) -> None:
        """Take a rank's answer."""
        self._answers[rank] = content

    def stacks(self, ranks: set[int], wait: Callable[[float], None]) -> dict[int, str]:
        """Ask for the Python stacks of ranks; `wait` lets answers come in."""
        self._answers.clear()
        for rank in ranks:
            self._send(rank, Message("where", {"stack": True}))
        deadline = time.monotonic() + 1.0
        while set(self._answers) < ranks and time.monotonic() < deadline:
            wait(0.05)
        return {rank: str(answer["stack"]) for rank, answer in self._answers.items()}

    def _stuck(self, rank: int, limit: float) -> bool:
        answer = self._answers.get(rank)
        return bool(answer and answer["tensor"] and answer["blocked_s"] >= limit)
