"""Built wheels in the user's cache, safe from builders that run at once.

An entry is a folder with the wheel and ``entry.json``. It is filled beside its
place and renamed into it, so that a reader sees a whole entry or none; a lock
per key lets the second of two builders wait for the first instead of compiling
the same thing.
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
    """Return the folder of all entries: below ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "gradient-workbench/horovod"


_KEPT_LOGS = 10


class WheelCache:
    """The wheels built so far.

    Parameters
    ----------
    folder
        Where entries, logs and locks live; made when first needed.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_folder()

    def get(self, key: str) -> Path | None:
        """Return the key's wheel, or None; a damaged entry counts as none."""
        entry = self.folder / key
        try:
            record = json.loads((entry / "entry.json").read_text(encoding="utf-8"))
            wheel = entry / record["wheel"]
            whole = _sha256(wheel) == record["sha256"]
        except (OSError, ValueError, KeyError):
            return None
        return wheel if whole else None

    def put(self, key: str, wheel: Path, facts: dict[str, Any]) -> Path:
        """Copy a wheel into the cache and return where it lies now.

        Whatever lies there under the key is replaced: `get` just called it
        damaged, or the caller asked for a new build.
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
        """Return a new, empty log for a build of this key; old logs are thinned out."""
        folder = self.folder / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        for old in sorted(folder.glob("*.log"), key=_age)[:-_KEPT_LOGS]:
            old.unlink(missing_ok=True)
        handle, name = tempfile.mkstemp(prefix=f"{key}-", suffix=".log", dir=folder)
        os.close(handle)
        return Path(name)

    @contextlib.contextmanager
    def lock(self, key: str, waiting: Callable[[], None]) -> Iterator[None]:
        """Hold the key's lock; `waiting` is called once if another holds it.

        On a file system without locks (some network homes) there is none:
        two builders may then compile the same wheel, and the last one stays.
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
        """Rename `fresh` to `entry`; an old entry moves out of the way first.

        In a loop, since another builder may put its own there in between.
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
    """Return when a file was last written; a file that is gone counts as oldest."""
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
