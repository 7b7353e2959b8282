"""Wheels: the facts that identify a wheel, its record of them, and the cache of built wheels.

A cache entry is a folder with the wheel and ``entry.json``. It is written to a temporary
folder and then renamed, so that a reader sees a complete entry or no entry. There is a lock
per key: the second of two builders waits for the first instead of compiling the
same wheel.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import errno
import fcntl
import hashlib
import io
import json
import logging
import os
import shutil
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from workbench.horovod_build import patches
from workbench.horovod_build.machine import Machine, TorchInfo
from workbench.horovod_build.operations import BuildOperations
from workbench.horovod_build.recipe import RECIPE, VERSION
from workbench.safefiles import xdg_folder

_log = logging.getLogger(__name__)

RECORD_NAME = "gradient-workbench.json"
"""Name of the file with the facts in the wheel's ``dist-info``."""


def facts(torch: TorchInfo, machine: Machine, operations: BuildOperations) -> dict[str, Any]:
    """Return, as JSON values, everything that determines the content of a wheel."""
    return {
        "horovod": VERSION,
        "recipe": RECIPE,
        patches.FACT: patches.digests(patches.patches_for(operations.names)),
        "torch": torch.version,
        "cuda": torch.cuda,
        "cxx11_abi": torch.cxx11_abi,
        "cxx_standard": torch.cxx_standard,
        "python": f"{sys.implementation.cache_tag} {sysconfig.get_config_var('SOABI')}",
        "platform": machine.platform,
        "libc": machine.libc,
        "arch_flags": list(machine.arch_flags),
        "compiler": machine.compiler_version,
        "operations": operations.versions(),
    }


def key(parts: dict[str, Any]) -> str:
    """Return the folder name of a wheel: its versions, then a hash of all its facts."""
    exact = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return f"{parts['horovod']}-torch{parts['torch']}-{exact[:16]}"


def add_record(wheel: Path, facts: dict[str, Any]) -> None:
    """Add the facts to the wheel's ``dist-info``, listed in its ``RECORD``.

    pip then installs and removes the file together with the package, so that the facts
    always belong to the installed Horovod.
    """
    text = json.dumps(facts, indent=1, sort_keys=True).encode()
    fresh = wheel.with_suffix(".new")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as new:
        record = next(name for name in old.namelist() if name.endswith(".dist-info/RECORD"))
        name = record.removesuffix("RECORD") + RECORD_NAME
        for entry in old.infolist():
            if entry.filename != record:
                new.writestr(entry, old.read(entry))
        new.writestr(name, text)
        new.writestr(record, _with_row(old.read(record).decode(), name, text))
    fresh.replace(wheel)


def _with_row(record: str, name: str, content: bytes) -> str:
    """Return the text of `RECORD` with a row for one more file."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    row = io.StringIO()
    csv.writer(row, lineterminator="\n").writerow([name, f"sha256={digest}", len(content)])
    return record.rstrip("\n") + "\n" + row.getvalue()


def cache_folder() -> Path:
    """Return the cache folder, below ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    return xdg_folder("XDG_CACHE_HOME", ".cache") / "gradient-workbench/horovod"


_MAX_LOGS = 10


class WheelCache:
    """Cache of built wheels: a folder of entries, logs and locks, created when first needed."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_folder()

    def get(self, key: str) -> Path | None:
        """Return the wheel of a key, or None if it is missing or damaged."""
        entry = self.folder / key
        try:
            record = json.loads((entry / "entry.json").read_text(encoding="utf-8"))
            wheel = entry / record["wheel"]
            is_intact = _sha256(wheel) == record["sha256"]
        except (OSError, ValueError, KeyError):
            return None
        _log.debug("Wheel %s in the cache is %s", wheel, "intact" if is_intact else "damaged")
        return wheel if is_intact else None

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
        _log.debug("Wheel %s was added to the cache", wheel.name)
        return self.folder / key / wheel.name

    def log_path(self, key: str) -> Path:
        """Create an empty log file for a build of this key, and delete the oldest logs."""
        folder = self.folder / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        for old in sorted(folder.glob("*.log"), key=_age)[:-_MAX_LOGS]:
            old.unlink(missing_ok=True)
        handle, name = tempfile.mkstemp(prefix=f"{key}-", suffix=".log", dir=folder)
        os.close(handle)
        return Path(name)

    @contextlib.contextmanager
    def lock(self, key: str, on_wait: Callable[[], None]) -> Iterator[None]:
        """Lock a key. `on_wait` is called once if another process has the lock.

        Some network file systems have no locks. There, two builders may compile the same
        wheel, and the cache keeps the later one.
        """
        folder = self.folder / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / key).open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
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
    """Return the modification time of a file; 0 if it was deleted."""
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
