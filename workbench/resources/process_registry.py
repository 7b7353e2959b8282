"""Registries where processes of one user on one VM publish data, as one JSON file each.

An entry is valid only while its process runs. Readers skip the entries of ended processes
and delete their files. Only the owner of the files can read them.

Ranks register, so that a sampler on the same VM learns which process is which rank. A rank is
forked, so its arguments and environment do not identify it, and its number may change. The
entries of ranks are in ``/tmp``, which is local to the VM (home may be on a network file system)
and the same for all Python environments.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from workbench.safefiles import load_json, make_private_folder, read_file, xdg_folder

_log = logging.getLogger(__name__)

FOLDER = "gradient-workbench"
"""Name of the folder in Jupyter's runtime folder where kernels publish their timings."""
CLUSTERS_FOLDER = "gradient-workbench-clusters"
"""Name of the folder in Jupyter's runtime folder where kernels publish their cluster's state."""
CLUSTERS_VERSION = 1
"""Version of the entries in `CLUSTERS_FOLDER`."""
MAX_BYTES = 4 << 20
"""Maximum size of an entry's file; a larger file is ignored."""
_INVALID = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError)
_SETTLED_NS = 2_000_000_000
"""File systems round modification times: two changes within this time may have the same time."""


def jupyter_folder(folder: str) -> Path:
    """Return one of Jupyter's folders as an absolute path.

    A relative XDG path is ignored. Jupyter does not ignore it, so its folders would be in the
    working directory of each process.
    """
    data = os.environ.get("XDG_DATA_HOME")
    if data and not Path(data).is_absolute() and Path(folder).is_relative_to(data):
        default = xdg_folder("XDG_DATA_HOME", ".local/share")
        return default / Path(folder).relative_to(data)
    return Path(folder).absolute()


class ProcessRegistry:
    """The entries in a folder.

    Parameters
    ----------
    folder
        Created by the first `register`, with access for its owner only.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     registry = ProcessRegistry(Path(folder))
    ...     registry.register("run", {"iterations": 100})
    ...     registry.read()
    [{'iterations': 100}]
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def register(self, name: str, content: dict[str, Any]) -> None:
        """Write an entry of this process, replacing its previous entry of that name.

        Raises
        ------
        OSError
            If it cannot be written.
        """
        make_private_folder(self._folder)
        path = self._path(name)
        temporary = path.with_suffix(f".part{os.getpid()}")
        signed = {**content, "signed": signature()}
        temporary.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(temporary, flags, 0o600), "w") as file:
            json.dump(signed, file)
        temporary.replace(path)

    def unregister(self, name: str) -> None:
        """Delete an entry of this process, if it exists."""
        self._path(name).unlink(missing_ok=True)

    def read(self) -> list[dict[str, Any]]:
        """Return the entries of running processes, in no particular order."""
        return [entry for path in self._paths() if (entry := _read(path)) is not None]

    def _paths(self) -> list[Path]:
        try:
            return list(self._folder.glob("*.json"))
        except OSError:
            return []

    def _path(self, name: str) -> Path:
        return self._folder / f"{os.getpid()}-{name}.json"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        if path.stat().st_uid != os.getuid():
            return None
        entry: dict[str, Any] = load_json(read_file(path, MAX_BYTES), finite=False)
        signed = entry.pop("signed")
        pid = signed["pid"]
        started_s = signed["started_s"]
        namespace = signed["namespace"]
        is_running = _started_s(pid) == started_s
    except _INVALID:
        return None
    if namespace != _pid_namespace():  # another VM or container shares the folder
        return None
    if not is_running:
        _log.debug("Deleting %s: process %s has ended", path, pid)
        path.unlink(missing_ok=True)
        return None
    return entry


def signature() -> dict[str, Any]:
    """Return what identifies this process among all that have run on this VM, as JSON."""
    pid = os.getpid()
    return {"pid": pid, "started_s": _started_s(pid), "namespace": _pid_namespace()}


def signed_by(signed: Any) -> int | None:
    """Return the process id of a `signature` while its process runs here, otherwise None.

    A process that reuses the id of an ended process does not match. A damaged signature gives
    None too.
    """
    try:
        pid = int(signed["pid"])
        runs = signed["namespace"] == _pid_namespace() and _started_s(pid) == signed["started_s"]
    except _INVALID:
        return None
    return pid if runs else None


def _started_s(pid: int) -> float | None:
    """Return when a process started, in seconds since the boot; None if it does not run.

    psutil's own `create_time` is a date, so it changes when the clock is set.
    """
    booted_s = psutil.boot_time()
    try:
        created_s = psutil.Process(pid).create_time()
    except psutil.Error:
        return None
    return float(round(created_s - booted_s, 2))


def _pid_namespace() -> str:
    """Return a text that is equal for all processes that share one space of process ids."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"


class RankName(NamedTuple):
    """The cluster and number of a rank."""

    cluster: str
    rank: int


def rank_folder() -> Path:
    """Return the folder where the ranks of this user register."""
    return Path(f"/tmp/gradient-workbench-ranks-{os.getuid()}")  # noqa: S108 - see `_is_ours`


def register_rank(cluster: str, rank: int, folder: Path | None = None) -> None:
    """Register this process as a rank, replacing its previous entry.

    Raises
    ------
    OSError
        If the entry cannot be written, or the folder belongs to another user.
    """
    folder = folder or rank_folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    if not _is_ours(folder):
        raise PermissionError(f"{folder} belongs to another user")
    registry = ProcessRegistry(folder)
    registry.read()  # deletes the entries of killed ranks
    registry.register("rank", {"pid": os.getpid(), "cluster": cluster, "rank": rank})


class RankRegistry:
    """Reads the registered ranks, and reads their files again only after changes."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or rank_folder()
        self._registry = ProcessRegistry(self._folder)
        self._changed_ns = 0
        self._ranks: dict[int, RankName] = {}

    def read(self, pids: set[int]) -> dict[int, RankName]:
        """Return the names of those running processes that are ranks of this user."""
        try:
            changed_ns = self._folder.stat().st_mtime_ns
        except OSError:
            return {}
        if changed_ns != self._changed_ns and _is_ours(self._folder):
            self._ranks = {
                pid: name for entry in self._registry.read() for pid, name in _named(entry)
            }
            settled = time.time_ns() - changed_ns > _SETTLED_NS
            self._changed_ns = changed_ns if settled else 0
        # a process that reuses the id of an ended rank is not a rank
        self._ranks = {pid: name for pid, name in self._ranks.items() if pid in pids}
        return self._ranks


def _named(entry: dict[str, Any]) -> list[tuple[int, RankName]]:
    pid = entry.get("pid")
    cluster = entry.get("cluster")
    rank = entry.get("rank")
    if isinstance(pid, int) and isinstance(cluster, str) and isinstance(rank, int):
        return [(pid, RankName(cluster, rank))]
    return []


def _is_ours(folder: Path) -> bool:
    """Return whether this user owns a folder in the world-writable ``/tmp``."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
