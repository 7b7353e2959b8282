"""Cache of built wheels, safe for concurrent builds.

An entry is a folder with the wheel and ``entry.json``. It is written to a temporary
folder and then renamed, so that a reader sees a complete entry or none. With a lock
per key, the second of two builders waits for the first instead of compiling the
same wheel.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def cache_folder() -> Path:
    """Return the cache folder, below ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "gradient-workbench/horovod"


_KEPT_LOGS = 10


class WheelCache:
    """Cache of built wheels.

    Parameters
    ----------
    folder
        Folder of entries, logs and locks; created when first needed.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_folder()

    def get(self, key: str) -> Path | None:
        """Return the wheel of a key, or None if it is missing or damaged."""
        entry = self.folder / key
        try:
            record = json.loads((entry / "entry.json").read_text(encoding="utf-8"))
            wheel = entry / record["wheel"]
            intact = _sha256(wheel) == record["sha256"]
        except (OSError, ValueError, KeyError):
            return None
        return wheel if intact else None

    def put(self, key: str, wheel: Path, facts: dict[str, Any]) -> Path:
        """Copy a wheel into the cache and return its path there.

        An existing entry of this key is replaced: it is damaged, or the caller asked for
        a new build.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=self.folder))
        try:
            shutil.copy2(wheel, fresh / wheel.name)
            record = {"wheel": wheel.name, "sha256": _sha256(fresh / wheel.name), "facts": facts}
            (fresh / "entry.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
            self._swap(fresh, self.folder / key)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return self.folder / key / wheel.name

    def log_path(self, key: str) -> Path:
        """Create an empty log file for a build of this key, and delete the oldest logs."""
        folder = self.folder / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        for old in sorted(folder.glob("*.log"), key=_age)[:-_KEPT_LOGS]:
            old.unlink(missing_ok=True)
        handle, name = tempfile.mkstemp(prefix=f"{key}-", suffix=".log", dir=folder)
        os.close(handle)
        return Path(name)

    @contextlib.contextmanager
    def lock(self, key: str, waiting: Callable[[], None]) -> Iterator[None]:
        """Lock a key; `waiting` is called once if another process has the lock.

        Some network file systems have no locks. Two builders may then compile the same
        wheel, and the later one is kept.
        """
        folder = self.folder / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / key).open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(handle, fcntl.LOCK_EX)
            except OSError:
                pass
            yield

    @staticmethod
    def _swap(fresh: Path, entry: Path) -> None:
        """Rename `fresh` to `entry`, after moving an old entry away.

        This is a loop because another builder may create the entry in between.
        """
        while True:
            try:
                fresh.rename(entry)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            else:
                return
            with (
                tempfile.TemporaryDirectory(prefix=".old-", dir=entry.parent) as old,
                contextlib.suppress(FileNotFoundError),
            ):
                entry.rename(Path(old) / "entry")


def _age(path: Path) -> float:
    """Return the modification time of a file; 0 if it was deleted meanwhile."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
