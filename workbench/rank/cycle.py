"""Which optimizer steps make up one iteration."""

from __future__ import annotations

from typing import Generic, TypeVar

Part = TypeVar("Part")


class Cycle(Generic[Part]):
    """Groups steps into iterations, whatever the number of optimizers.

    An iteration ends when every optimizer that stepped in the one before has
    stepped again; the first ends when an optimizer steps for the second time.
    So a GAN's two steps are one iteration, and so is a critic's step among
    several before the generator's.
    """

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._stepped: set[int] = set()
        self._expected: set[int] = set()

    def step(self, optimizer: int, part: Part) -> list[list[Part]]:
        """Add what led to a step of `optimizer`; return the iterations that are complete."""
        complete = []
        if optimizer in self._stepped:
            complete.append(self._take())
        self._parts.append(part)
        self._stepped.add(optimizer)
        if self._expected and self._stepped >= self._expected:
            complete.append(self._take())
        return complete

    def end(self) -> list[list[Part]]:
        """Return the last iteration, if one has begun, and forget what was learned."""
        complete = [self._take()] if self._parts else []
        self._expected = set()
        return complete

    def _take(self) -> list[Part]:
        parts, self._parts = self._parts, []
        self._expected, self._stepped = self._stepped, set()
        return parts
