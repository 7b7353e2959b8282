"""The folder of all runs: functions that find runs and remove old ones."""

from __future__ import annotations

import logging
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import RunError, UsageError, shortened
from workbench.safefiles import xdg_folder
from workbench.timings.folder import MAX_EVIDENCE, RunFolder, evidence_files
from workbench.timings.session_file import SUFFIX, unpack

_log = logging.getLogger(__name__)

FolderLike = str | os.PathLike[str]

FOLDER_VARIABLE = "GRADIENT_WORKBENCH_RUNS"
"""Environment variable with the folder of all runs."""
MAX_RUNS = 50
"""Default of GRADIENT_WORKBENCH_MOST_RUNS: the maximum number of runs."""
MAX_BYTES = 10_000_000_000
"""Default of GRADIENT_WORKBENCH_MOST_BYTES: the maximum size of all runs together."""

_MAX_SHOWN = 300
"""Maximum number of characters of a name in an error message."""


@dataclass(frozen=True)
class RunLimits:
    """Maximum number and size of all runs, including the run being written.

    The run being written is never removed.

    Examples
    --------
    >>> RunLimits()
    RunLimits(max_runs=50, max_bytes=10000000000)
    """

    max_runs: int = MAX_RUNS
    max_bytes: int = MAX_BYTES

    @classmethod
    def from_environment(cls) -> RunLimits:
        """Return the limits from the environment variables, with defaults for unset ones.

        Raises
        ------
        UsageError
            A variable is not a positive integer.
        """
        return cls(
            _number("GRADIENT_WORKBENCH_MOST_RUNS", MAX_RUNS),
            _number("GRADIENT_WORKBENCH_MOST_BYTES", MAX_BYTES),
        )


def _number(variable: str, default: int) -> int:
    """Return the positive integer in an environment variable, or the default if it is not set."""
    text = os.environ.get(variable, "").strip()
    if not text:
        return default
    if not text.isdecimal() or not int(text):
        raise UsageError(f"{variable}={text!r}: not a positive integer. Set it to one.")
    return int(text)


def runs_folder(folder: FolderLike | None = None) -> Path:
    """Return the folder of all runs, which may not exist.

    It is `folder`, or else ``$GRADIENT_WORKBENCH_RUNS``, or else
    ``gradient-workbench/runs`` in ``$XDG_DATA_HOME`` (``~/.local/share``).
    """
    named = os.environ.get(FOLDER_VARIABLE) if folder is None else checked_path(folder, "folder")
    if named:
        return _expanded(named).absolute()
    return xdg_folder("XDG_DATA_HOME", ".local/share") / "gradient-workbench" / "runs"


def checked_path(path: FolderLike, name: str) -> str:
    """Return the text of a path that was passed as the argument `name`.

    Raises
    ------
    UsageError
        The argument is not a path.

    Examples
    --------
    >>> checked_path(Path("runs/first"), "folder")
    'runs/first'
    """
    text = path if isinstance(path, str) else getattr(path, "__fspath__", lambda: None)()
    if not isinstance(text, str) or not _can_be_path(text):
        argument = shortened(repr(path), _MAX_SHOWN)
        raise UsageError(f"{name}={argument}: not a path. Give it as text, such as 'runs/first'.")
    return text


def _can_be_path(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:  # a lone surrogate
        return False


def new_path(cluster: str, folder: FolderLike | None = None) -> Path:
    """Return an unused path for a run; it has the current time and the cluster's name."""
    word = re.sub(r"[^\w.-]+", "-", cluster).strip("-.") or "cluster"
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{word}"
    path = runs_folder(folder) / name
    number = 2
    while path.exists():
        path = path.with_name(f"{name}-{number}")
        number += 1
    return path


def all_runs(folder: FolderLike | None = None) -> list[RunFolder]:
    """Return the runs in the folder, the newest first."""
    try:
        paths = [path for path in runs_folder(folder).iterdir() if path.is_dir()]
    except OSError:
        return []
    runs = [run for run in map(RunFolder, paths) if run.is_run()]
    return sorted(runs, key=_started_s, reverse=True)


def find(path_or_name: FolderLike, folder: FolderLike | None = None) -> RunFolder:
    """Return the folder of a run by its path, its name, its cluster's name, or a session file.

    Raises
    ------
    RunError
        There is no such run.
    """
    text = checked_path(path_or_name, "path_or_name")
    runs = all_runs(folder)
    named = [run for run in runs if run.path.name == text]
    # the name of a cluster selects its newest run
    named += [run for run in runs if re.fullmatch(rf"\d+-\d+-{re.escape(text)}", run.path.name)]
    path = named[0].path if named else _expanded(text)
    if path.suffix == SUFFIX and path.is_file():
        return unpack(path)
    try:
        run = RunFolder(path)
        if run.is_run():
            return run
        reason = _no_run_reason(path)
    except OSError as error:  # no permission for a parent folder, or a name that is too long
        reason = f"it cannot be read ({error.strerror})"
    raise RunError(f"run {shortened(repr(text), _MAX_SHOWN)}: {reason}. {_hint(runs, folder)}")


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # the path names a user that does not exist
        return Path(path)


def _no_run_reason(path: Path) -> str:
    """Return the reason why a path is no run."""
    if path.is_dir():
        try:
            empty = not any(path.iterdir())
        except OSError as error:
            return f"the folder {path} cannot be read ({error.strerror})"
        return f"the folder {path} is empty" if empty else f"the folder {path} holds no run"
    if path.exists():
        return f"{path} is a file, and a run is a folder"
    return "there is no such run, and no such folder"


def _hint(runs: list[RunFolder], folder: FolderLike | None) -> str:
    """Return a sentence on how to find a run."""
    parent = runs_folder(folder)
    if not runs:
        return f"{parent} holds no run: train on a cluster first, or name another folder."
    return f"The newest run in {parent} is {runs[0].path.name}; %timings list shows all."


def prune(folder: FolderLike | None, limits: RunLimits, new: Path) -> None:
    """Remove the oldest unused runs until the limits allow the run `new`."""
    runs = [run for run in all_runs(folder) if run.path != new]
    sizes = {run.path: run.size_bytes() for run in runs}
    for run in reversed(runs):
        if len(sizes) < limits.max_runs and sum(sizes.values()) <= limits.max_bytes:
            return
        if run.remove(_kept_s(run)):
            size_bytes = sizes.pop(run.path)
            _log.info("removed the old run %s (%d bytes)", run.path, size_bytes)


def prune_evidence(folder: Path) -> None:
    """Remove the oldest evidence bundles of a run, and of clusters that trained nothing.

    Raises
    ------
    OSError
        A bundle cannot be removed.
    """
    for path in evidence_files(folder)[MAX_EVIDENCE:]:
        path.unlink(missing_ok=True)
    others = [RunFolder(path) for path in folder.parent.iterdir() if path.is_dir()]
    without_run = [
        run
        for run in others
        if run.path != folder and evidence_files(run.path) and not run.is_run()
    ]
    without_run.sort(key=lambda run: run.path.name, reverse=True)
    for run in without_run[MAX_RUNS:]:
        run.remove()


def _kept_s(run: RunFolder) -> float:
    """Return how long the ranks of a run live without a kernel, in seconds."""
    try:
        return float(run.read_facts().get("kept_s") or 0)
    except (OSError, ValueError, TypeError):
        return 0.0


def _started_s(run: RunFolder) -> float:
    """Return when a run started, in seconds since the epoch; its folder's time if unknown."""
    try:
        return float(run.read_facts()["started_s"])
    except (OSError, ValueError, TypeError, KeyError):
        try:
            return run.path.stat().st_mtime
        except OSError:
            return 0.0
