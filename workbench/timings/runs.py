"""The folder of all runs: find runs, and remove old ones."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import RunError, UsageError, shortened
from workbench.safefiles import xdg_folder
from workbench.timings.folder import MAX_EVIDENCE, RunFolder, evidence_files
from workbench.timings.session_file import SUFFIX, unpack

FolderLike = str | os.PathLike[str]

FOLDER_VARIABLE = "GRADIENT_WORKBENCH_RUNS"
MAX_RUNS = 50
"""Default of GRADIENT_WORKBENCH_MOST_RUNS: how many runs are kept."""
MAX_BYTES = 10_000_000_000
"""Default of GRADIENT_WORKBENCH_MOST_BYTES: the size limit of all runs."""


_SHOWN = 300
"""Most characters of a name in an error message."""


@dataclass(frozen=True)
class Limits:
    """Limits of all runs, including the run being written, which is never removed."""

    most_runs: int = MAX_RUNS
    most_bytes: int = MAX_BYTES

    @classmethod
    def from_environment(cls) -> Limits:
        """Return the limits from the environment variables, or else the defaults.

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
    """Return an argument `name` as the text of a path.

    Raises
    ------
    UsageError
        It is not a path.
    """
    text = path if isinstance(path, str) else getattr(path, "__fspath__", lambda: None)()
    if not isinstance(text, str) or not _can_be_path(text):
        given = shortened(repr(path), _SHOWN)
        raise UsageError(f"{name}={given}: not a path. Give it as text, such as 'runs/first'.")
    return text


def _can_be_path(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:  # a lone surrogate
        return False


def new_path(cluster: str, folder: FolderLike | None = None) -> Path:
    """Return a new path for a run: the current time, and the cluster's name."""
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
    return sorted(runs, key=_began, reverse=True)


def find(path_or_name: FolderLike, folder: FolderLike | None = None) -> RunFolder:
    """Return a run's folder by its path, its name, or its cluster's name; or a session file's.

    Raises
    ------
    RunError
        There is no such run.
    """
    given = checked_path(path_or_name, "path_or_name")
    runs = all_runs(folder)
    named = [run for run in runs if run.path.name == given]
    # a cluster's name means its newest run
    named += [run for run in runs if re.fullmatch(rf"\d+-\d+-{re.escape(given)}", run.path.name)]
    path = named[0].path if named else _expanded(given)
    if path.suffix == SUFFIX and path.is_file():
        return unpack(path)
    try:
        run = RunFolder(path)
        if run.is_run():
            return run
        why = _why(path)
    except OSError as error:  # no permission for a parent folder, or a name that is too long
        why = f"it cannot be read ({error.strerror})"
    raise RunError(f"run {shortened(repr(given), _SHOWN)}: {why}. {_hint(runs, folder)}")


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # no such user
        return Path(path)


def _why(path: Path) -> str:
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
    where = runs_folder(folder)
    if not runs:
        return f"{where} holds no run: train on a cluster first, or name another folder."
    return f"The newest run in {where} is {runs[0].path.name}; %timings list shows all."


def prune(folder: FolderLike | None, limits: Limits, new: Path) -> None:
    """Remove the oldest unused runs until the limits allow the `new` one."""
    runs = [run for run in all_runs(folder) if run.path != new]
    sizes = {run.path: run.size_bytes() for run in runs}
    for run in reversed(runs):
        if len(sizes) < limits.most_runs and sum(sizes.values()) <= limits.most_bytes:
            return
        if run.remove(_kept_s(run)):
            del sizes[run.path]


def prune_evidence(folder: Path) -> None:
    """Remove the oldest evidence bundles: of this run, and of clusters that trained nothing.

    Raises
    ------
    OSError
        One cannot be removed.
    """
    for path in evidence_files(folder)[MAX_EVIDENCE:]:
        path.unlink(missing_ok=True)
    others = [RunFolder(path) for path in folder.parent.iterdir() if path.is_dir()]
    only = [
        run
        for run in others
        if run.path != folder and evidence_files(run.path) and not run.is_run()
    ]
    only.sort(key=lambda run: run.path.name, reverse=True)
    for run in only[MAX_RUNS:]:
        run.remove()


def _kept_s(run: RunFolder) -> float:
    try:
        return float(run.read_facts().get("kept_s") or 0)
    except (OSError, ValueError, TypeError):
        return 0.0


def _began(run: RunFolder) -> float:
    try:
        return float(run.read_facts()["started_s"])
    except (OSError, ValueError, TypeError, KeyError):
        try:
            return run.path.stat().st_mtime
        except OSError:
            return 0.0
