"""The folder of one run: its files, its facts, and its lock.

- ``run.json``: the facts about the run
- ``snapshots.json``: the hardware of each VM, as its agent detected it
- ``evidence-NAME.zip``: evidence bundles of cells that failed or hung
- ``profile-K.json.gz``: profiles of the ranks (`export.profile`)
- ``verdict.json``: the verdict of the last training cell (`verdict.Verdict`)
- ``iterations-K.arrows``, ``offsets-K.arrows``, ``collectives-K.arrows``,
  ``layouts-K.arrows``, ``logged-K.arrows`` (the values that cells log), ``samples-K.arrows``
  (`samples.COLUMNS`; samples of the VMs while cells ran): Arrow IPC streams. K is the number of the
  kernel that wrote the file; a run has several kernels if one attached to a kept cluster
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
"""Format of the folder; incremented when earlier versions would misread the folder."""

SNAPSHOTS = "snapshots"
"""Key of the VMs' snapshots among the facts that a `RunWriter` receives."""
_FACTS = "run.json"
_SNAPSHOTS = f"{SNAPSHOTS}.json"
_VERDICT = "verdict.json"
_JSON = frozenset({_FACTS, _SNAPSHOTS, _VERDICT})
_LOCK = "lock"
_MAX_BYTES = 16 << 20
"""Maximum size of `run.json`; with 512 ranks it has 100 kB."""
_MAX_SNAPSHOT_BYTES = 64 << 20
"""Maximum size of `snapshots.json`; a VM with 8 GPUs needs about 100 kB."""
MAX_EVIDENCE = 10
"""Maximum number of evidence bundles of a run; the newest are kept."""
_EVIDENCE = re.compile(r"evidence-[\w.-]+\.zip", re.ASCII)
MAX_PROFILES = 10
"""Maximum number of profiles of a run; the newest are kept."""
_PROFILE = re.compile(r"profile-(\d+)\.json\.gz", re.ASCII)
_STREAM = re.compile(r"(iterations|offsets|collectives|layouts|logged|samples)-(\d+)\.arrows")
_REMOVABLE = re.compile(
    rf"{_STREAM.pattern}|{_EVIDENCE.pattern}|\.evidence-[\w.-]+\.part|{_PROFILE.pattern}(\.part)?"
)
"""Names of files that are removed with the run, in addition to the JSON files."""


def is_run_file(name: str) -> bool:
    """Whether a file of this name has data of a run.

    Examples
    --------
    >>> is_run_file("iterations-0.arrows"), is_run_file("run.json"), is_run_file("lock")
    (True, True, False)
    """
    return name in _JSON or _STREAM.fullmatch(name) is not None


def download_type(name: str) -> str | None:
    """Return the MIME type of a file that users can download; None for any other name.

    Examples
    --------
    >>> download_type("profile-1.json.gz")
    'application/gzip'
    >>> download_type("run.json") is None
    True
    """
    if _EVIDENCE.fullmatch(name):
        return "application/zip"
    return "application/gzip" if _PROFILE.fullmatch(name) else None


class RunFolder:
    """A run's folder, which may not exist yet; `lock` shows whether a kernel writes to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = RunLock(path / _LOCK)

    def stream(self, kind: str, segment: int) -> Path:
        """Return the path of the Arrow file of a kind, written by the kernel number `segment`."""
        return self.path / f"{kind}-{segment}.arrows"

    def segments(self) -> list[int]:
        """Return the numbers of the kernels that wrote the run, in order."""
        names = (_STREAM.fullmatch(name) for name in self._names())
        return sorted({int(name[2]) for name in names if name is not None})

    def is_run(self) -> bool:
        """Whether the folder contains a run."""
        return bool(self.segments()) or _FACTS in self._names()

    def size_bytes(self) -> int:
        """Return the total size of the files in bytes."""
        return sum(size for _, size in self.sizes())

    def files(self) -> list[Path]:
        """Return the paths of the files that have data of the run."""
        names = sorted(name for name in self._names() if is_run_file(name))
        return [self.path / name for name in names]

    def sizes(self) -> list[tuple[str, int]]:
        """Return the name and the size in bytes of each file, by name."""
        sizes = []
        for name in sorted(self._names()):
            with contextlib.suppress(OSError):  # it was removed after it was listed
                sizes.append((name, (self.path / name).stat().st_size))
        return sizes

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
        """Return the snapshots of the VMs as plain values; raise the errors of `read_facts`."""
        return load_json(read_file(self.path / _SNAPSHOTS, _MAX_SNAPSHOT_BYTES), finite=False)

    def write_snapshots(self, snapshots: dict[str, Any]) -> None:
        """Write the snapshots of the VMs by name, completely or not at all."""
        write_private(self.path / _SNAPSHOTS, json.dumps(snapshots))

    def read_verdict(self) -> Verdict | None:
        """Return the verdict of the run's last training cell; None if none is stored.

        Raises
        ------
        OSError, ValueError, RunError
            The verdict cannot be read.
        """
        try:
            return Verdict.from_dict(load_json(read_file(self.path / _VERDICT, _MAX_BYTES)))
        except FileNotFoundError:
            return None

    def write_verdict(self, verdict: Verdict) -> None:
        """Write the verdict, completely or not at all."""
        write_private(self.path / _VERDICT, json.dumps(verdict.to_dict(), indent=1))

    def remove(self, kept_s: float = 0.0) -> bool:
        """Remove the run's files, and also the folder if it contains no other files.

        Return False if the run is in use. The run also counts as in use for `kept_s` seconds after
        the last write. Its ranks may live for this time without a kernel, and another kernel may
        attach to them.
        """
        with self.lock.unused() as is_unused:
            min_quiet_s = kept_s + HEARTBEAT_S if kept_s else kept_s
            if not is_unused or self.lock.idle_s() < min_quiet_s:
                return False
            for name in self._names():
                if _REMOVABLE.fullmatch(name) or name.removesuffix(".part") in _JSON:
                    (self.path / name).unlink(missing_ok=True)
            self.lock.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it contains other files
            self.path.rmdir()
        return True

    def _names(self) -> list[str]:
        try:
            return [path.name for path in self.path.iterdir()]
        except (OSError, ValueError):  # ValueError: the path contains a NUL
            return []


def evidence_file(folder: Path, name: str) -> Path:
    """Return the path of an evidence bundle in a run's folder; it may not exist yet."""
    return folder / f"evidence-{name}.zip"


def new_profile(folder: Path) -> Path:
    """Return the path of the next profile in a run's folder, and remove files to make room.

    The oldest profiles and incomplete ones are removed. So only one profile may be written at a
    time.

    Raises
    ------
    OSError
        The folder cannot be read, or a file cannot be removed.
    """
    profiles: dict[int, Path] = {}
    for path in folder.iterdir():
        if match := _PROFILE.fullmatch(path.name):
            profiles[int(match[1])] = path
        elif _PROFILE.fullmatch(path.name.removesuffix(".part")):
            path.unlink(missing_ok=True)  # its kernel ended while it wrote the file
    for number in sorted(profiles)[: -(MAX_PROFILES - 1)]:
        profiles[number].unlink(missing_ok=True)
    return folder / f"profile-{max(profiles, default=0) + 1}.json.gz"


def evidence_files(folder: Path) -> list[Path]:
    """Return the paths of the evidence bundles in a run's folder, the newest first."""
    try:
        paths = [path for path in folder.iterdir() if _EVIDENCE.fullmatch(path.name)]
    except OSError:
        return []
    return sorted(paths, key=modified_s, reverse=True)
