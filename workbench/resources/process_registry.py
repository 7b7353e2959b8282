"""Registry in which processes of one user on one machine publish data: one JSON file each.

An entry is valid only while its process runs. Readers skip the entries of ended processes
and delete their files. Only the owner of the files can read them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import psutil

from workbench.safefiles import load_json, make_private_folder, read_file

FOLDER = "gradient-workbench"
"""Name of the registry's folder in Jupyter's runtime folder."""
MOST_BYTES = 4 << 20
"""A larger file is not an entry."""


class ProcessRegistry:
    """The entries in a folder.

    Parameters
    ----------
    folder
        Created by the first `register`, with access for its owner only.
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
        part = path.with_suffix(f".part{os.getpid()}")
        signed = {**content, "signed": _signature(os.getpid())}
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(signed, file)
        part.replace(path)

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
        entry: dict[str, Any] = load_json(read_file(path, MOST_BYTES), finite=False)
        signed = entry.pop("signed")
        pid, started_s, namespace = signed["pid"], signed["started_s"], signed["namespace"]
        is_running = _started_s(pid) == started_s
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    if namespace != _pid_namespace():  # another machine or container shares the folder
        return None
    if not is_running:
        path.unlink(missing_ok=True)
        return None
    return entry


def _signature(pid: int) -> dict[str, Any]:
    return {"pid": pid, "started_s": _started_s(pid), "namespace": _pid_namespace()}


def _started_s(pid: int) -> float | None:
    """Return when a process started, in seconds since the boot; None if there is none.

    psutil's own `create_time` is a date, which changes when the clock is set.
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
