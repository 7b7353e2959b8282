"""Replaces functions of other packages: the base of all hooks."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any, NamedTuple

from workbench.rank.recording.compiler import never_compile
from workbench.rank.recording.guard import Guard
from workbench.rank.recording.recorder import Recorder

Function = Callable[..., Any]


class Patch(NamedTuple):
    """A replaced function.

    Attributes
    ----------
    before
        The entry of the owner's ``__dict__``; `_INHERITED` if there was no entry. For a method of
        a class in C++, the entry differs from the attribute.
    """

    owner: Any
    name: str
    before: Any
    replacement: Function


_INHERITED = object()


class Patches:
    """Replaces functions, and restores them in reverse order.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> owner = SimpleNamespace(double=lambda value: 2 * value)
    >>> patches = Patches()
    >>> patches.replace(owner, "double", lambda original: lambda value: original(value) + 1)
    >>> owner.double(3)
    7
    >>> patches.remove()
    >>> owner.double(3)
    6
    """

    def __init__(self) -> None:
        self._patches: list[Patch] = []

    def replace(self, owner: Any, name: str, make: Callable[[Function], Function]) -> None:
        """Set ``owner.name`` to the result of `make`, which is called with the original.

        Do nothing if an earlier replacement could not be removed.
        """
        if any(patch.owner is owner and patch.name == name for patch in self._patches):
            return
        original = getattr(owner, name)
        replacement = update_wrapper(self._replacement(original, make), original)
        never_compile(replacement, calls=False)
        before = vars(owner).get(name, _INHERITED)
        self._patches.append(Patch(owner, name, before, replacement))
        setattr(owner, name, replacement)

    def _replacement(self, original: Function, make: Callable[[Function], Function]) -> Function:
        return make(original)

    def remove(self) -> None:
        """Restore the replaced functions, except where a cell has replaced our function by its own.

        The cell's function may call our function, so our function stays in use.
        """
        kept = []
        for patch in reversed(self._patches):
            if vars(patch.owner).get(patch.name) is not patch.replacement:
                kept.append(patch)
            elif patch.before is _INHERITED:
                delattr(patch.owner, patch.name)
            else:
                setattr(patch.owner, patch.name, patch.before)
        self._patches = kept[::-1]


class Hooks(Patches):
    """Replaces functions of a library by functions that report to a `Recorder`.

    Attributes
    ----------
    kind
        Name of the recorded events, as shown to users.
    guard
        Keeps exceptions of the hooks from the user's code.
    """

    kind = "collectives"

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder
        self.guard = Guard(self.kind, recorder.failed)

    def _replacement(self, original: Function, make: Callable[[Function], Function]) -> Function:
        return self.guard.around(original, make)

    def renew(self) -> None:
        """Enable a kind of recording again that has failed."""
        self.guard.broken = False

    def install(self) -> None:
        """Start recording."""
        raise NotImplementedError

    def begin_cell(self) -> None:
        """Prepare for a cell."""

    def end_cell(self) -> None:
        """Remove all hooks that belong to the cell."""
