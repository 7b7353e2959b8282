"""Ask a rank for the names of an object's attributes, for completion."""

from __future__ import annotations

import itertools
import threading

from workbench.cluster.state import ClusterState
from workbench.wire.completion_messages import Attributes, AttributesRequest

RANK = 0
"""The rank that receives the requests."""
_LIMIT_S = 0.5
"""Time limit for the answer, so that completion stays responsive."""


class RemoteAttributes:
    """Completes attributes of the ranks' objects while no cell runs.

    `receive` is called in the control channel's thread.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._latest: Attributes | None = None

    def receive(self, answer: Attributes) -> None:
        """Store the answer of a rank."""
        with self._changed:
            self._latest = answer
            self._changed.notify_all()

    def names(self, path: tuple[str, ...], limit_s: float = _LIMIT_S) -> tuple[str, ...]:
        """Return names of attributes; an empty tuple if the rank does not answer in time.

        While a cell runs, the result is empty, because completion must neither wait for the cell
        nor disturb it.

        Parameters
        ----------
        path
            The name of a variable, and names of attributes from there on.
        """
        state = self._state
        if state.state != "ready" or state.forked or state.lost():
            return ()
        number = next(self._numbers)
        state.processes.receive_attributes = self.receive
        state.processes.engines.send(RANK, AttributesRequest(number, path))
        with self._changed:
            self._changed.wait_for(lambda: self._has(number), limit_s)
            return self._latest.names if self._latest is not None and self._has(number) else ()

    def _has(self, number: int) -> bool:
        return self._latest is not None and self._latest.number == number
