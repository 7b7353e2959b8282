"""Folders of an agent and its ranks, which are removed when the last of these processes ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

_PREFIX = "workbench-rank-"
_LOCK = "lock"
_YOUNG_S = 60.0
"""A younger lock file may not be locked yet."""


class RankFolder:
    """A folder for logs and profiles of ranks, created when it is first needed.

    The agent removes it at its end, or the ranks do if the agent was killed. If all were
    killed, the next agent removes it: a lock on a file in it, which every process inherits
    from the agent, shows whether one of them still runs.
    """

    def __init__(self) -> None:
        self._path: Path | None = None

    @property
    def path(self) -> Path:
        """The folder; only this user can read it."""
        if self._path is None:
            self._path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            claim(self._path)
        return self._path

    def remove(self) -> None:
        """Remove the folder, if it was created."""
        if self._path is not None:
            remove(self._path)


def remove(path: Path) -> None:
    """Remove a claimed folder, as far as possible; its lock file last.

    While the lock file exists, the next agent can remove what is left: this process may be
    killed, or another one may still write there.
    """
    with contextlib.suppress(OSError):
        for child in path.iterdir():
            if child.is_dir() and not child.is_symlink():
                shutil.rmtree(child, ignore_errors=True)
            elif child.name != _LOCK:
                child.unlink(missing_ok=True)
        if {child.name for child in path.iterdir()} <= {_LOCK}:
            shutil.rmtree(path)


def claim(path: Path) -> int | None:
    """Mark a folder as in use until this process and its children have ended.

    Return the descriptor that marks it, which children inherit; None if that is not possible.
    Folders next to it that agents no longer use are removed. Folders without a lock file
    are kept: an agent of another version may use them.
    """
    (path / _LOCK).touch(mode=0o600)
    descriptor = _lock(path)  # the lock is released when the last process ends
    _remove_abandoned(path.parent, path.name.rpartition("-")[0] + "-")
    return descriptor


def _lock(path: Path) -> int | None:
    """Lock a folder and return the open descriptor, or None if another process has locked it."""
    try:
        descriptor = os.open(path / _LOCK, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove the folders of this user's agents whose processes have all ended."""
    for path in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            found = (path / _LOCK).lstat()
            if found.st_uid != os.getuid() or time.time() - found.st_mtime < _YOUNG_S:
                continue
            descriptor = _lock(path)
            if descriptor is not None:
                remove(path)
                os.close(descriptor)
