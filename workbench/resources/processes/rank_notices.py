"""Which process is which rank: each rank says so, for whoever samples its VM.

A rank is forked, so neither its arguments nor its environment tell, and its number
may change. The notices lie in ``/tmp``, which is the machine's own (home may be
shared by many) and the same for processes of different environments.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Any, NamedTuple

from workbench.resources.noticeboard import Noticeboard

_SETTLED_NS = 2_000_000_000
"""A folder that changed as lately as this may change again without a new time."""


class RankName(NamedTuple):
    """Which rank of which cluster."""

    cluster: str
    rank: int


def folder() -> Path:
    """Return where the ranks of this user post."""
    return Path(f"/tmp/gradient-workbench-ranks-{os.getuid()}")  # noqa: S108 - see `_is_ours`


def post(cluster: str, rank: int, where: Path | None = None) -> None:
    """Say that this process is a rank, in place of what it said before.

    Raises
    ------
    OSError
        It cannot be written, or the folder is another user's.
    """
    where = where or folder()
    where.mkdir(mode=0o700, exist_ok=True)
    if not _is_ours(where):
        raise PermissionError(f"{where} belongs to another user")
    board = Noticeboard(where)
    board.read()  # removes those of ranks that were killed, and that nobody has read
    board.post("rank", {"pid": os.getpid(), "cluster": cluster, "rank": rank})


class RankNotices:
    """Reads the notices, anew only where they have changed.

    Parameters
    ----------
    where
        Their folder.
    """

    def __init__(self, where: Path | None = None) -> None:
        self._where = where or folder()
        self._board = Noticeboard(self._where)
        self._changed_ns = 0
        self._ranks: dict[int, RankName] = {}

    def read(self, pids: set[int]) -> dict[int, RankName]:
        """Return which of the processes that run are ranks of this user."""
        try:
            changed_ns = self._where.stat().st_mtime_ns
        except OSError:
            return {}
        if changed_ns != self._changed_ns and _is_ours(self._where):
            self._ranks = {pid: name for one in self._board.read() for pid, name in _named(one)}
            settled = time.time_ns() - changed_ns > _SETTLED_NS
            self._changed_ns = changed_ns if settled else 0
        # whoever gets the number of one that has ended is no rank
        self._ranks = {pid: name for pid, name in self._ranks.items() if pid in pids}
        return self._ranks


def _named(notice: dict[str, Any]) -> list[tuple[int, RankName]]:
    pid, cluster, rank = notice.get("pid"), notice.get("cluster"), notice.get("rank")
    if isinstance(pid, int) and isinstance(cluster, str) and isinstance(rank, int):
        return [(pid, RankName(cluster, rank))]
    return []


def _is_ours(where: Path) -> bool:
    """Whether a folder in a place where all may write is one that only we write to."""
    about = where.lstat()
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()
