"""Restores settings of the process that a cell has made unusable for later cells."""

from __future__ import annotations

import builtins
import contextlib
import mmap
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

_RECURSIONS = 500
"""Lowest usable recursion limit: the code of a cell begins at a depth of about 60 frames."""
_OPEN_FILES = 256
_RESERVE_BYTES = 64 << 20
"""Space for a few threads, with stacks of 8 MB by default, and for the text of an error."""
_MIN_RESERVE_BYTES = 8 << 20
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0)
_NO_ACCESS = 0
"""PROT_NONE, which Python does not define: such memory uses addresses only."""
_TYPES = {name: value for name, value in vars(builtins).items() if isinstance(value, type)}
_CALLABLES = {name: value for name, value in vars(builtins).items() if callable(value)}


class ProcessState:
    """Saves the settings of the process, and restores settings that became unusable.

    Attributes
    ----------
    reserve
        Address space that cells cannot use.
    """

    def __init__(self) -> None:
        self.reserve = AddressReserve()
        self._recursions = max(sys.getrecursionlimit(), _RECURSIONS)
        self._warned = False
        self._open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def repair(self) -> str:
        """Restore unusable settings; return a line that lists them, or an empty text."""
        repaired = [*self._recursion(), *_builtins(), *_signals(), *self._files()]
        if repaired:
            return f"Reset after this cell, because later cells need it: {', '.join(repaired)}.\n"
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if not self._warned and 0 <= soft == hard < min(_OPEN_FILES, self._open_files):
            self._warned = True
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


class AddressReserve:
    """Address space that is reserved for this package while a cell runs.

    A cell can use all address space that ``RLIMIT_AS`` allows. Without the reserve, no space
    would be left for its error and for the threads of another ring. Then no later cell could run
    and free memory.

    Examples
    --------
    >>> reserve = AddressReserve()
    >>> reserve.take()
    >>> reserve.release()
    """

    def __init__(self) -> None:
        self._mapped: mmap.mmap | None = None

    def take(self) -> None:
        """Reserve the space, before a cell; less of it, or nothing, if there is not enough."""
        size = _RESERVE_BYTES
        while self._mapped is None and size >= _MIN_RESERVE_BYTES:
            with contextlib.suppress(OSError, MemoryError):
                self._mapped = mmap.mmap(-1, size, mmap.MAP_PRIVATE | _NORESERVE, _NO_ACCESS)
            size //= 2

    def release(self) -> None:
        """Make the space available until the next cell; in any thread."""
        mapped = self._mapped
        self._mapped = None
        if mapped is not None:
            mapped.close()

    def shortage(self, left_bytes: int = _RESERVE_BYTES) -> str:
        """Describe the use if at most `left_bytes` of the limit are left; else return ""."""
        try:
            limit = resource.getrlimit(resource.RLIMIT_AS)[0]
            used = _address_space()
            if not 0 <= limit < used + left_bytes:
                return ""
            return (
                f"{used / 1e9:.2f} GB of memory are used of the {limit / 1e9:.2f} GB that "
                "RLIMIT_AS (ulimit -v) allows"
            )
        except MemoryError:  # the caller's own error must not be lost
            return ""

    @contextmanager
    def released(self, purpose: str) -> Iterator[None]:
        """Release the space, and name the limit if the body fails near it.

        Raises
        ------
        MemoryError
            The body has failed, and little of the limit is left.
        """
        self.release()
        try:
            yield
        except Exception as error:
            if shortage := self.shortage():
                raise MemoryError(f"{purpose} needs more memory: {shortage}") from error
            raise


def _address_space() -> int:
    """Return the size of this process's address space in bytes."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    except (OSError, ValueError):
        return 0


def _builtins() -> Iterator[str]:
    """Restore replaced types, and functions that were replaced by something not callable."""
    now = vars(builtins)
    for name, usual in _CALLABLES.items():
        is_type = name in _TYPES
        if (now.get(name) is not usual) if is_type else not callable(now.get(name)):
            setattr(builtins, name, usual)
            yield f"builtins.{name}"


def _signals() -> Iterator[str]:
    """Unblock SIGINT, which interrupts a cell."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    if signal.SIGINT in blocked:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        yield "the blocked signal SIGINT"


class GradientMode:
    """PyTorch's gradient and autocast modes before a cell.

    If an interrupt arrives in ``__enter__`` or ``__exit__`` of ``torch.no_grad()``, gradients
    remain off, and all later training fails.
    """

    def __init__(self) -> None:
        self._grad = torch.is_grad_enabled()
        self._autocast = {kind: torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")}

    def restore(self) -> None:
        """Set the saved modes again."""
        torch.set_grad_enabled(self._grad)
        for kind, enabled in self._autocast.items():
            torch.set_autocast_enabled(kind, enabled)
