"""Collect the states of ranks. Control threads report them while the main threads wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import Any, NamedTuple

from workbench.wire import Message
from workbench.wire.rank_messages import RankState, StateRequest

_MAX_REQUESTS = 4
"""The answers to this many newest requests are kept."""


class SeenState(NamedTuple):
    """A rank's state, and the time of its arrival in seconds since the epoch."""

    at_s: float
    state: RankState

    def to_plain(self) -> dict[str, Any]:
        """Return the state as JSON values, without the stack."""
        plain = asdict(self.state)
        for name in ("stack", "asked_s", "for_stall_report"):
            del plain[name]
        return {"at_s": self.at_s, **plain}


class RankStates:
    """Collects the answers to requests for states. All methods are thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._latest: dict[int, SeenState] = {}
        self._answers: dict[float, dict[int, SeenState]] = {}

    def receive(self, rank: int, state: RankState) -> None:
        """Store a state, if it has a stack. Another object may have requested it."""
        if not state.stack:
            return
        with self._changed:
            self._latest[rank] = seen = SeenState(time.time(), state)
            if state.asked_s in self._answers:
                self._answers[state.asked_s][rank] = seen
                self._changed.notify_all()

    def forget(self) -> None:
        """Forget all states, because the numbers of ranks may belong to other processes now."""
        with self._changed:
            self._latest.clear()
            self._answers.clear()

    def request(self, ranks: Collection[int], send: Callable[[int, Message], None]) -> float:
        """Ask ranks for their states; return the id of the request, which `answers` needs."""
        asked_s = time.monotonic()
        with self._changed:
            self._answers[asked_s] = {}
            for old_request in list(self._answers)[:-_MAX_REQUESTS]:
                del self._answers[old_request]
        for rank in ranks:
            send(rank, StateRequest(asked_s, stack=True, outstanding=True))
        return asked_s

    def answers(
        self, asked_s: float, ranks: Collection[int] = (), limit_s: float = 0.0
    ) -> dict[int, SeenState]:
        """Return the answers to a request; wait up to `limit_s` seconds for `ranks` to answer."""
        with self._changed:
            answers = self._answers.get(asked_s, {})
            self._changed.wait_for(lambda: set(ranks) <= set(answers), limit_s)
            return dict(answers)

    def latest(self) -> dict[int, SeenState]:
        """Return the newest state of each rank, if the rank has reported a state with a stack."""
        with self._changed:
            return dict(self._latest)
