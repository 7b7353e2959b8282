"""Registry of ranks, from which a sampler on the same VM learns which process is which rank.

A rank is forked, so its arguments and environment do not identify it, and its number may
change. The entries are in ``/tmp``, because it is local to the machine (home may be on a
network file system) and the same for all Python environments.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Any, NamedTuple

from workbench.resources.process_registry import ProcessRegistry

_SETTLED_NS = 2_000_000_000
"""A folder modified within this time may change again without a new modification time."""


class RankName(NamedTuple):
    """The cluster and number of a rank."""

    cluster: str
    rank: int


def folder() -> Path:
    """Return the folder in which the ranks of this user register."""
    return Path(f"/tmp/gradient-workbench-ranks-{os.getuid()}")  # noqa: S108 - see `_is_ours`


def register(cluster: str, rank: int, where: Path | None = None) -> None:
    """Register this process as a rank, replacing its previous entry.

    Raises
    ------
    OSError
        If it cannot be written, or the folder belongs to another user.
    """
    where = where or folder()
    where.mkdir(mode=0o700, exist_ok=True)
    if not _is_ours(where):
        raise PermissionError(f"{where} belongs to another user")
    registry = ProcessRegistry(where)
    registry.read()  # deletes the entries of killed ranks
    registry.register("rank", {"pid": os.getpid(), "cluster": cluster, "rank": rank})


class RankRegistry:
    """Reads the registered ranks, and reads them again only after changes.

    Parameters
    ----------
    where
        Folder of the entries.
    """

    def __init__(self, where: Path | None = None) -> None:
        self._where = where or folder()
        self._registry = ProcessRegistry(self._where)
        self._changed_ns = 0
        self._ranks: dict[int, RankName] = {}

    def read(self, pids: set[int]) -> dict[int, RankName]:
        """Return which of the running processes are ranks of this user."""
        try:
            changed_ns = self._where.stat().st_mtime_ns
        except OSError:
            return {}
        if changed_ns != self._changed_ns and _is_ours(self._where):
            self._ranks = {pid: name for one in self._registry.read() for pid, name in _named(one)}
            settled = time.time_ns() - changed_ns > _SETTLED_NS
            self._changed_ns = changed_ns if settled else 0
        # a process that reuses the id of an ended rank is not a rank
        self._ranks = {pid: name for pid, name in self._ranks.items() if pid in pids}
        return self._ranks


def _named(entry: dict[str, Any]) -> list[tuple[int, RankName]]:
    pid, cluster, rank = entry.get("pid"), entry.get("cluster"), entry.get("rank")
    if isinstance(pid, int) and isinstance(cluster, str) and isinstance(rank, int):
        return [(pid, RankName(cluster, rank))]
    return []


def _is_ours(where: Path) -> bool:
    """Return whether this user owns a folder in the world-writable ``/tmp``."""
    about = where.lstat()
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()
