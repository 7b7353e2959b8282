"""Replacing functions of other packages, and putting them back."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any


class Patches:
    """Remembers what it replaced; `undo` restores it, last first."""

    def __init__(self) -> None:
        self._saved: list[tuple[Any, str, Any, bool]] = []

    def replace(
        self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        """Set ``owner.name`` to what `make` returns for its present value."""
        original = getattr(owner, name)
        self._saved.append((owner, name, original, name in vars(owner)))
        setattr(owner, name, update_wrapper(make(original), original))

    def undo(self) -> None:
        """Put everything back."""
        while self._saved:
            owner, name, original, own = self._saved.pop()
            if own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)  # it was inherited
