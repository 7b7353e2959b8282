"""Pushing values to the ranks and pulling them: queued behind the cells, and always ended."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from keyword import iskeyword
from typing import Any

from workbench.cluster.background import uninterrupted
from workbench.cluster.cells import Cells
from workbench.cluster.condition import Condition
from workbench.cluster.idle import IdleWatch
from workbench.cluster.running import Running
from workbench.cluster.transfer import Transfer
from workbench.errors import UsageError
from workbench.wire import values

_OF_ONE_RANK = {"rank", "local_rank"}


class Exchange:
    """Moves values between this kernel and the ranks of one cluster.

    Parameters
    ----------
    condition
        The cluster's state.
    cells
        Its cells, for whose end a transfer waits.
    idle
        To be told when the cluster is used.
    """

    def __init__(self, condition: Condition, cells: Cells, idle: IdleWatch) -> None:
        self._condition = condition
        self._cells = cells
        self._idle = idle

    def push(self, names: dict[str, Any], ranks: tuple[int, ...], timeout_s: float) -> None:
        """Set names in the ranks' namespace; see `Cluster.push`."""
        what = _call("push", names)
        try:
            payload = values.dump(names)
        except Exception:  # noqa: BLE001 - a user's class may raise anything
            name, kind, why = values.unsendable(names)
            raise UsageError(
                f"{what}: {name!r} is of type {kind}, which cannot be pickled ({why}). "
                "Push a plain part of it, or create it in a cell on the ranks."
            ) from None
        with self._turn(what) as running:
            transfer = Transfer(running, ranks, self._condition.lost, what, timeout_s)
            transfer.push(payload, list(names))

    def pull(
        self, names: list[str], ranks: tuple[int, ...], timeout_s: float
    ) -> dict[int, dict[str, Any]]:
        """Return the values of names, by rank; see `Cluster.pull`."""
        what = _call("pull", names)
        with self._turn(what) as running:
            transfer = Transfer(running, ranks, self._condition.lost, what, timeout_s)
            found = transfer.pull(names)
        return {
            rank: _load(what, rank, names, payload, types)
            for rank, (payload, types) in found.items()
        }

    @contextmanager
    def _turn(self, what: str) -> Iterator[Running]:
        """Wait for the cells that were queued before, and keep the next ones waiting."""
        condition = self._condition
        condition.whole(ring=False)
        with self._cells.between(what):
            running = condition.whole(ring=False)
            before = condition.state, condition.message
            condition.set("running", what)
            self._idle.used()
            try:
                yield running
            finally:
                self._idle.used()
                uninterrupted(lambda: self._settle(*before))

    def _settle(self, state: str, message: str) -> None:
        """Restore the state before; without a ring it was "failed" for that reason."""
        condition = self._condition
        with condition.lock:
            if condition.state == "running":
                lost = condition.lost()
                condition.set(*(("failed", condition.trouble()) if lost else (state, message)))


def _load(
    what: str, rank: int, names: list[str], payload: values.Payload, types: dict[str, str]
) -> dict[str, Any]:
    try:
        loaded, needed = values.load(payload, names)
    except Exception as error:  # noqa: BLE001 - a user's class may raise anything
        told = ", ".join(f"{name!r} is of type {kind}" for name, kind in types.items())
        raise UsageError(
            f"{what}: this kernel cannot read the value of rank {rank} "
            f"({values.one_line(error)}; {told}). Make its class importable here, or pull a "
            "plain part of it."
        ) from None
    for name, value in needed.items():
        sys.modules["__main__"].__dict__.setdefault(name, value)
    return {name: loaded[name] for name in names}


def _call(verb: str, names: dict[str, Any] | list[str]) -> str:
    """Return what is done, for errors.

    Raises
    ------
    UsageError
        A name cannot be a variable's, or must not have one value on all ranks.
    """
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or iskeyword(name):
            raise UsageError(
                f"{verb} {name!r}: not a valid Python name. Give the name of a variable."
            )
        if verb == "push" and name in _OF_ONE_RANK:
            raise UsageError(
                f"push {name}: each rank has its own {name!r}, which its cells need. "
                "Push the value under another name."
            )
    return f"{verb} {' '.join(names)}"
