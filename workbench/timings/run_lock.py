"""The lock of a run's folder, which shows other processes that a kernel writes the run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from workbench.safefiles import wait_for_lock

HEARTBEAT_S = 60.0
"""Interval between updates of the lock file's time, for file systems without locks."""
_LOCK_S = 2.0
"""How long a writer waits while another process checks the lock, in seconds."""


class RunLock:
    """A lock file (flock). The kernel that writes the run locks the file until that kernel ends.

    If the file system has no locks, the modification time of the file shows that the run is in use.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def acquire(self) -> int:
        """Lock the run for writing, and return the open lock file; closing it unlocks the run.

        Raises
        ------
        TimeoutError
            Another process has locked the run.
        """
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            wait_for_lock(file, fcntl.LOCK_SH, _LOCK_S)
        except TimeoutError as error:
            os.close(file)
            raise TimeoutError(
                f"{self.path}: {error}. End that process, which `lslocks` names"
            ) from None
        except OSError:  # the file system has no locks: `beat` marks the run as in use
            pass
        return file

    def beat(self) -> None:
        """Update the time of the lock file, to show that the run is still being written."""
        os.utime(self.path)

    def in_use(self) -> bool:
        """Whether a kernel writes the run, on this VM or another one."""
        with self.unused() as is_unused:
            return not is_unused

    def idle_s(self) -> float:
        """Return the time since the last write, in seconds."""
        try:
            return time.time() - self.path.stat().st_mtime
        except OSError:
            return float("inf")

    @contextlib.contextmanager
    def unused(self) -> Iterator[bool]:
        """Yield whether no kernel writes the run, and prevent writing inside the `with` block."""
        try:
            # O_NONBLOCK, because the file may be a named pipe
            file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            yield True
            return
        except OSError:  # the file belongs to another user, or the file system is read-only
            yield self.idle_s() > 2 * HEARTBEAT_S
            return
        try:
            yield self._try_lock(file)
        finally:
            os.close(file)

    def _try_lock(self, file: int) -> bool:
        """Return whether no kernel writes the run, after locking the open lock file if possible."""
        for _ in range(3):  # another process may check the lock at the same time
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.005)
            except OSError:
                return self.idle_s() > 2 * HEARTBEAT_S
            else:
                return True
        return False
