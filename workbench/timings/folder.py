"""The folder of one run: its files' names, what the run was, and whether it is being written.

- ``run.json``: what the run was
- ``iterations-K.arrows``, ``collectives-K.arrows``, ``layouts-K.arrows``: Arrow
  IPC streams; K counts the kernels that wrote it (several where a kept cluster
  was met again)
- ``lock``: held (flock) by the kernel that writes; the system lets go of it
  when that kernel ends, however it ends
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workbench.safefiles import load_json, read_file, wait_for_lock, write_private

FORMAT = 1
"""Of the folder; raised where an earlier version would misread a later one's."""

HEARTBEAT_S = 60.0
"""The lock's time is set anew this often, for file systems that know no locks."""

_FACTS = "run.json"
_LOCK = "lock"
_LOCK_S = 2.0
"""Whoever checks whether a run is in use has the lock for a moment."""
_MOST_BYTES = 16 << 20
"""Of `run.json`: that of 512 ranks has some 100 kB."""
_STREAM = re.compile(r"(iterations|collectives|layouts)-(\d+)\.arrows")


class RunFolder:
    """A run's folder, which need not be there yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def stream(self, kind: str, segment: int) -> Path:
        """Return the file of one kind and one kernel."""
        return self.path / f"{kind}-{segment}.arrows"

    def segments(self) -> list[int]:
        """Return the numbers of the kernels that wrote to it, in order."""
        names = (_STREAM.fullmatch(name) for name in self._names())
        return sorted({int(name[2]) for name in names if name is not None})

    def is_run(self) -> bool:
        """Whether a run was ever written there."""
        return bool(self.segments()) or _FACTS in self._names()

    def size_bytes(self) -> int:
        """Return what its files take."""
        return sum(size for _, size in self.sizes())

    def sizes(self) -> list[tuple[str, int]]:
        """Return its files and their sizes."""
        found = []
        for name in sorted(self._names()):
            with contextlib.suppress(OSError):  # removed meanwhile
                found.append((name, (self.path / name).stat().st_size))
        return found

    def read_facts(self) -> dict[str, Any]:
        """Return what the run was; raises `OSError` or `ValueError` where that cannot be read."""
        try:
            facts = load_json(read_file(self.path / _FACTS, _MOST_BYTES), finite=False)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path / _FACTS)) from error
        if not isinstance(facts, dict):
            raise ValueError("it holds no JSON object")
        return facts

    def write_facts(self, facts: dict[str, Any]) -> None:
        """Write down what the run was, at once or not at all."""
        write_private(self.path / _FACTS, json.dumps(facts, indent=1))

    def lock(self) -> int:
        """Say that this process writes to it, until the file that is returned is closed.

        Raises
        ------
        TimeoutError
            Another process keeps it locked.
        """
        file = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            wait_for_lock(file, fcntl.LOCK_SH, _LOCK_S)
        except TimeoutError as error:
            os.close(file)
            raise TimeoutError(
                f"{self.path / _LOCK}: {error}. End that process, which `lslocks` names"
            ) from None
        except OSError:  # without locks, the file's time says that somebody writes
            pass
        return file

    def beat(self) -> None:
        """Say that it is still being written."""
        os.utime(self.path / _LOCK)

    def in_use(self) -> bool:
        """Whether a kernel writes to it, on this machine or another."""
        with self._unused() as free:
            return not free

    def remove(self, kept_s: float = 0.0) -> bool:
        """Remove the run's files, and the folder unless it holds others.

        Parameters
        ----------
        kept_s
            How long its ranks live without a kernel, which may come for it.

        Returns
        -------
        bool
            False where it is in use.
        """
        with self._unused() as free:
            if not free or self.quiet_s() < kept_s + HEARTBEAT_S * bool(kept_s):
                return False
            for name in self._names():
                if _STREAM.fullmatch(name) or name in {_FACTS, f"{_FACTS}.part"}:
                    (self.path / name).unlink(missing_ok=True)
            (self.path / _LOCK).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # there is more in it, that is not ours
            self.path.rmdir()
        return True

    def quiet_s(self) -> float:
        """Return how long nobody has written to it."""
        try:
            return time.time() - (self.path / _LOCK).stat().st_mtime
        except OSError:
            return float("inf")

    @contextlib.contextmanager
    def _unused(self) -> Iterator[bool]:
        """Say whether nobody writes to it, and let nobody begin meanwhile."""
        try:
            # a pipe of that name is not waited for
            file = os.open(self.path / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            yield True
            return
        except OSError:  # another user's, or a file system that is read only
            yield self.quiet_s() > 2 * HEARTBEAT_S
            return
        try:
            yield self._try_lock(file)
        finally:
            os.close(file)

    def _try_lock(self, file: int) -> bool:
        for _ in range(3):  # another process may be looking at the same moment
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.005)
            except OSError:
                return self.quiet_s() > 2 * HEARTBEAT_S
            else:
                return True
        return False

    def _names(self) -> list[str]:
        try:
            return [path.name for path in self.path.iterdir()]
        except (OSError, ValueError):  # a NUL in its path
            return []
