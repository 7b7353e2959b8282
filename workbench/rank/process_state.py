"""Settings of a process that a cell may break for the next cells and for our own code."""

from __future__ import annotations

import builtins
import contextlib
import os
import resource
import signal
import sys
from collections.abc import Iterator

import torch

_RECURSIONS = 500
"""A cell of a notebook already begins at about 60 frames."""
_OPEN_FILES = 256
_TYPES = {name: value for name, value in vars(builtins).items() if isinstance(value, type)}
_CALLABLES = {name: value for name, value in vars(builtins).items() if callable(value)}


class ProcessState:
    """Notes a process's settings once, and restores what a cell has made unusable."""

    def __init__(self) -> None:
        self._recursions = max(sys.getrecursionlimit(), _RECURSIONS)
        self._told_hard = False
        self._open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def repair(self) -> str:
        """Restore what is unusable; return a line that says what, or an empty text."""
        repaired = [*self._recursion(), *_builtins(), *_signals(), *self._files()]
        if repaired:
            return f"Reset after this cell, because later cells need it: {', '.join(repaired)}.\n"
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if not self._told_hard and 0 <= soft == hard < min(_OPEN_FILES, self._open_files):
            self._told_hard = True
            return (
                f"The limit of open files: {hard}, and only a privileged process can raise it "
                "again. If later cells fail, replace the rank with %cluster restart --ranks.\n"
            )
        return ""

    def _recursion(self) -> Iterator[str]:
        limit = sys.getrecursionlimit()
        if limit < min(_RECURSIONS, self._recursions):
            sys.setrecursionlimit(self._recursions)
            yield f"the recursion limit from {limit} to {self._recursions}"

    def _files(self) -> Iterator[str]:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if 0 <= soft < min(_OPEN_FILES, self._open_files):
            wanted = self._open_files if hard < 0 else min(self._open_files, hard)
            if wanted <= soft:
                return
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                yield f"the limit of open files from {soft} to {wanted}"


def _builtins() -> Iterator[str]:
    """Restore functions that cannot be called any more, and types; other functions may stay."""
    now = vars(builtins)
    for name, usual in _CALLABLES.items():
        is_type = name in _TYPES
        if (now.get(name) is not usual) if is_type else not callable(now.get(name)):
            setattr(builtins, name, usual)
            yield f"builtins.{name}"


def _signals() -> Iterator[str]:
    """Let interrupts through again; a handler of SIGINT is each cell's own."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    if signal.SIGINT in blocked:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        yield "the blocked signal SIGINT"


class GradientMode:
    """Notes PyTorch's modes before a cell, which an interrupt may end within ``no_grad()``.

    Where it arrives within a context manager's own ``__enter__`` or ``__exit__``, the mode is
    never left: each later training would fail for tensors without a ``grad_fn``.
    """

    def __init__(self) -> None:
        self._grad = torch.is_grad_enabled()
        self._autocast = {kind: torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")}

    def restore(self) -> None:
        """Set the modes that were noted."""
        torch.set_grad_enabled(self._grad)
        for kind, enabled in self._autocast.items():
            torch.set_autocast_enabled(kind, enabled)


def reopen_descriptors() -> None:
    """Open descriptors 0 to 2 that a cell has closed; else files of others get their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            if null != number:
                os.dup2(null, number)
                os.close(null)
