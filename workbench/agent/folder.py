"""Folders of an agent and its ranks. They are removed when the last of these processes ends."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
import time
from pathlib import Path

_log = logging.getLogger(__name__)

_PREFIX = "workbench-rank-"
_LOCK = "lock"
_YOUNG_S = 60.0
"""Lock files that are younger than this may not be locked yet."""


class RankFolder:
    """A folder for logs and profiles of ranks, created when it is first needed.

    The agent removes the folder at its end. If the agent was killed, the ranks remove it. If all
    were killed, the next agent removes it. Every process inherits the lock on a file in the folder
    from the agent, so the lock shows whether any of them still runs.
    """

    def __init__(self) -> None:
        self._path: Path | None = None

    @property
    def path(self) -> Path:
        """The path of the folder. Only this user can read the folder."""
        if self._path is None:
            self._path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            claim(self._path)
        return self._path

    def remove(self) -> None:
        """Remove the folder, if it was created."""
        if self._path is not None:
            remove(self._path)


def remove(path: Path) -> None:
    """Remove a claimed folder as far as possible, and its lock file last.

    This process may be killed before it has finished, or another process may still write to the
    folder. As long as the lock file exists, the next agent can remove the rest.
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

    Also remove the folders beside it that agents no longer use. Folders without a lock file are
    kept, because an agent of another version of this package may use them.

    Returns
    -------
    int or None
        The descriptor that marks the folder, which children inherit; None if the folder cannot be
        locked.
    """
    (path / _LOCK).touch(mode=0o600)
    descriptor = _lock(path)  # the lock is released when the last process ends
    _remove_abandoned(path.parent, path.name.rpartition("-")[0] + "-")
    return descriptor


def _lock(path: Path) -> int | None:
    """Lock a folder, and return the open descriptor; None if another process has locked it."""
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
            status = (path / _LOCK).lstat()
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < _YOUNG_S:
                continue
            descriptor = _lock(path)
            if descriptor is not None:
                _log.info("Removing abandoned folder %s", path)
                remove(path)
                os.close(descriptor)
