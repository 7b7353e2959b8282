"""The folder of one run: its files, its facts, and its lock.

- ``run.json``: the facts about the run
- ``snapshots.json``: the hardware of each VM, as its agent found it
- ``evidence-NAME.zip``: evidence bundles of cells that failed or hung
- ``profile-K.json.gz``: profiles of its ranks (`export.profile`)
- ``verdict.json``: the verdict of the last training cell (`verdict.Verdict`)
- ``iterations-K.arrows``, ``offsets-K.arrows``, ``collectives-K.arrows``,
  ``layouts-K.arrows``, ``logged-K.arrows`` (what cells log), ``samples-K.arrows``: Arrow IPC
  streams; K counts the kernels that wrote it (several if another kernel attached to a kept
  cluster). The samples are those of the VMs while cells ran (`samples.COLUMNS`)
- ``lock``: locked by the kernel that writes, until that kernel ends (`run_lock.RunLock`)
"""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

from workbench.safefiles import load_json, modified_s, read_file, write_private
from workbench.timings.run_lock import HEARTBEAT_S, RunLock
from workbench.timings.verdict import Verdict

FORMAT = 1
"""Format of the folder; incremented when earlier versions would misread it."""

SNAPSHOTS = "snapshots"
"""Key of the snapshots of the VMs, by name, among the facts that a `RunWriter` is given."""
_FACTS = "run.json"
_SNAPSHOTS = f"{SNAPSHOTS}.json"
_VERDICT = "verdict.json"
_JSON = frozenset({_FACTS, _SNAPSHOTS, _VERDICT})
_LOCK = "lock"
_MAX_BYTES = 16 << 20
"""Largest `run.json` that is read; that of 512 ranks has 100 kB."""
_MAX_SNAPSHOT_BYTES = 64 << 20
"""Largest `snapshots.json` that is read; a VM of 8 GPUs has some 100 kB."""
MAX_EVIDENCE = 10
"""Evidence bundles that are kept, the newest."""
_EVIDENCE = re.compile(r"evidence-[\w.-]+\.zip", re.ASCII)
MAX_PROFILES = 10
"""Profiles that are kept, the newest."""
_PROFILE = re.compile(r"profile-(\d+)\.json\.gz", re.ASCII)
_STREAM = re.compile(r"(iterations|offsets|collectives|layouts|logged|samples)-(\d+)\.arrows")
_OWN = re.compile(
    rf"{_STREAM.pattern}|{_EVIDENCE.pattern}|\.evidence-[\w.-]+\.part|{_PROFILE.pattern}(\.part)?"
)
"""Files that are removed with the run, besides JSON."""


def is_run_file(name: str) -> bool:
    """Whether a file of this name has data of a run."""
    return name in _JSON or _STREAM.fullmatch(name) is not None


def download_type(name: str) -> str | None:
    """Return the MIME type of a file that users download; None if no such file has this name."""
    if _EVIDENCE.fullmatch(name):
        return "application/zip"
    return "application/gzip" if _PROFILE.fullmatch(name) else None


class RunFolder:
    """A run's folder, which may not exist yet; `lock` shows whether a kernel writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = RunLock(path / _LOCK)

    def stream(self, kind: str, segment: int) -> Path:
        """Return the file of one kind and one kernel."""
        return self.path / f"{kind}-{segment}.arrows"

    def segments(self) -> list[int]:
        """Return the numbers of the kernels that wrote the run, in order."""
        names = (_STREAM.fullmatch(name) for name in self._names())
        return sorted({int(name[2]) for name in names if name is not None})

    def is_run(self) -> bool:
        """Whether the folder contains a run."""
        return bool(self.segments()) or _FACTS in self._names()

    def size_bytes(self) -> int:
        """Return the size of its files in bytes."""
        return sum(size for _, size in self.sizes())

    def files(self) -> list[Path]:
        """Return the paths of its data: facts and streams."""
        names = sorted(name for name in self._names() if is_run_file(name))
        return [self.path / name for name in names]

    def sizes(self) -> list[tuple[str, int]]:
        """Return its files and their sizes."""
        found = []
        for name in sorted(self._names()):
            with contextlib.suppress(OSError):  # removed meanwhile
                found.append((name, (self.path / name).stat().st_size))
        return found

    def read_facts(self) -> dict[str, Any]:
        """Return the facts about the run; raise OSError or ValueError if they cannot be read."""
        try:
            facts = load_json(read_file(self.path / _FACTS, _MAX_BYTES), finite=False)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path / _FACTS)) from error
        if not isinstance(facts, dict):
            raise ValueError("not a JSON object")
        return facts

    def write_facts(self, facts: dict[str, Any]) -> None:
        """Write the facts about the run, completely or not at all."""
        write_private(self.path / _FACTS, json.dumps(facts, indent=1))

    def read_snapshots(self) -> Any:
        """Return the snapshots of the VMs as plain values; raise as `read_facts`."""
        return load_json(read_file(self.path / _SNAPSHOTS, _MAX_SNAPSHOT_BYTES), finite=False)

    def write_snapshots(self, snapshots: dict[str, Any]) -> None:
        """Write the snapshots of the VMs by name, completely or not at all."""
        write_private(self.path / _SNAPSHOTS, json.dumps(snapshots))

    def read_verdict(self) -> Verdict | None:
        """Return the verdict of the run's last training cell; None if none is stored.

        Raises
        ------
        OSError, ValueError, RunError
            It cannot be read.
        """
        try:
            return Verdict.from_dict(load_json(read_file(self.path / _VERDICT, _MAX_BYTES)))
        except FileNotFoundError:
            return None

    def write_verdict(self, verdict: Verdict) -> None:
        """Replace the verdict, completely or not at all."""
        write_private(self.path / _VERDICT, json.dumps(verdict.to_dict(), indent=1))

    def remove(self, kept_s: float = 0.0) -> bool:
        """Remove the run's files, and the folder unless it contains other files.

        Return False if the run is in use. Its ranks may live without a kernel for `kept_s`
        seconds, and another kernel may attach to them.
        """
        with self.lock.unused() as free:
            if not free or self.lock.quiet_s() < kept_s + HEARTBEAT_S * bool(kept_s):
                return False
            for name in self._names():
                if _OWN.fullmatch(name) or name.removesuffix(".part") in _JSON:
                    (self.path / name).unlink(missing_ok=True)
            self.lock.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it contains other files
            self.path.rmdir()
        return True

    def _names(self) -> list[str]:
        try:
            return [path.name for path in self.path.iterdir()]
        except (OSError, ValueError):  # a NUL in its path
            return []


def evidence_file(folder: Path, name: str) -> Path:
    """Return the file of an evidence bundle in a run's folder, which may not exist yet."""
    return folder / f"evidence-{name}.zip"


def new_profile(folder: Path) -> Path:
    """Return the file of the next profile in a run's folder; remove the oldest ones, and parts.

    Only one profile may be written at a time.

    Raises
    ------
    OSError
        The folder cannot be read, or one cannot be removed.
    """
    found: dict[int, Path] = {}
    for path in folder.iterdir():
        if match := _PROFILE.fullmatch(path.name):
            found[int(match[1])] = path
        elif _PROFILE.fullmatch(path.name.removesuffix(".part")):
            path.unlink(missing_ok=True)  # of a kernel that ended while it wrote
    for number in sorted(found)[: -(MAX_PROFILES - 1)]:
        found[number].unlink(missing_ok=True)
    return folder / f"profile-{max(found, default=0) + 1}.json.gz"


def evidence_files(folder: Path) -> list[Path]:
    """Return the evidence bundles in a run's folder, the newest first."""
    try:
        paths = [path for path in folder.iterdir() if _EVIDENCE.fullmatch(path.name)]
    except OSError:
        return []
    return sorted(paths, key=modified_s, reverse=True)
