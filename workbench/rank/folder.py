"""The folder of an agent and its ranks: for logs and profiles, gone when all of them are."""

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
"""A lock file that is younger may not be locked yet."""


class RankFolder:
    """A folder that whoever of its processes ends last removes; made when it is first needed.

    The agent removes it at its end, and its ranks where it was killed. Were all
    killed, the next agent does: a lock on a file in it, which every process
    inherits from the agent, shows whether one of them still runs. A folder
    without that file may be in use by an agent of another version, and stays.
    """

    def __init__(self) -> None:
        self._path: Path | None = None

    @property
    def path(self) -> Path:
        """The folder, readable by this user only."""
        if self._path is None:
            self._path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            (self._path / _LOCK).touch(mode=0o600)
            _lock(self._path)  # never closed: the end of the last process does
            _remove_abandoned(self._path.parent)
        return self._path

    def remove(self) -> None:
        """Remove it, where it was made."""
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)


def _lock(path: Path) -> int | None:
    """Lock a folder for as long as the descriptor is open; None where another process has."""
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


def _remove_abandoned(parent: Path) -> None:
    """Remove the folders of this user's agents of which no process is left."""
    for path in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            found = (path / _LOCK).lstat()
            if found.st_uid != os.getuid() or time.time() - found.st_mtime < _YOUNG_S:
                continue
            descriptor = _lock(path)
            if descriptor is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(descriptor)
