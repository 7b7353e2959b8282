"""What processes of one user on one machine tell each other: a small file each.

A notice goes with its process: once that has ended, however it did, readers no
longer see it, and remove its file. Only the user who posts can read them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from workbench.safefiles import load_json, make_private_folder, read_file

FOLDER = "gradient-workbench"
"""Of the notices, in the user's runtime folder."""
MOST_BYTES = 4 << 20
"""Longer files are no notices."""


class Noticeboard:
    """The notices in a folder.

    Parameters
    ----------
    folder
        Made, for its owner only, by the first who posts.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def post(self, name: str, content: dict[str, Any]) -> None:
        """Put a notice up in the name of this process, in place of its last one of that name.

        Raises
        ------
        OSError
            It cannot be written.
        """
        make_private_folder(self._folder)
        path = self._path(name)
        part = path.with_suffix(f".part{os.getpid()}")
        signed = {**content, "signed": _signature(os.getpid())}
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(signed, file)
        part.replace(path)

    def withdraw(self, name: str) -> None:
        """Take a notice of this process down, if it is there."""
        self._path(name).unlink(missing_ok=True)

    def read(self) -> list[dict[str, Any]]:
        """Return the notices of processes that still run, in no order; others are skipped."""
        return [notice for path in self._paths() if (notice := _read(path)) is not None]

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
        notice: dict[str, Any] = load_json(read_file(path, MOST_BYTES), finite=False)
        signed = notice.pop("signed")
        pid, began, where = signed["pid"], signed["began"], signed["where"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if where != _where():  # another machine, or container, shares the folder
        return None
    if _began(pid) != began:
        path.unlink(missing_ok=True)
        return None
    return notice


def _signature(pid: int) -> dict[str, Any]:
    return {"pid": pid, "began": _began(pid), "where": _where()}


def _began(pid: int) -> str | None:
    """Return when a process began, in ticks since the boot; None where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def _where() -> str:
    """Return a word for all processes that see each other's ids."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
