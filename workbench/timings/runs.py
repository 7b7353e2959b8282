"""Where runs are kept, how one is found, and which are removed."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import RunError, UsageError
from workbench.timings.folder import RunFolder

FolderLike = str | os.PathLike[str]

FOLDER_VARIABLE = "GRADIENT_WORKBENCH_RUNS"
MOST_RUNS = 50
"""Runs that are kept, unless GRADIENT_WORKBENCH_MOST_RUNS says otherwise."""
MOST_BYTES = 10_000_000_000
"""Bytes that they may take, unless GRADIENT_WORKBENCH_MOST_BYTES says otherwise."""


@dataclass(frozen=True)
class Limits:
    """How much is kept; the run that is written counts too, and is never removed."""

    most_runs: int = MOST_RUNS
    most_bytes: int = MOST_BYTES

    @classmethod
    def from_environment(cls) -> Limits:
        """Return what the environment's variables say, or else the defaults.

        Raises
        ------
        UsageError
            One of them is no number from 1.
        """
        return cls(
            _number("GRADIENT_WORKBENCH_MOST_RUNS", MOST_RUNS),
            _number("GRADIENT_WORKBENCH_MOST_BYTES", MOST_BYTES),
        )


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "").strip()
    if not text:
        return default
    if not text.isdecimal() or not int(text):
        raise UsageError(f"{variable}={text!r}: not a positive integer. Set it to one.")
    return int(text)


def runs_folder(folder: FolderLike | None = None) -> Path:
    """Return the folder of the runs, which need not be there.

    It is `folder`, or else ``$GRADIENT_WORKBENCH_RUNS``, or else
    ``gradient-workbench/runs`` in ``$XDG_DATA_HOME`` (``~/.local/share``).
    """
    named = os.environ.get(FOLDER_VARIABLE) if folder is None else folder
    if named:
        return _expanded(os.fspath(named)).absolute()
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return _expanded(data).absolute() / "gradient-workbench" / "runs"


def new_path(cluster: str, folder: FolderLike | None = None) -> Path:
    """Return a path for a run that begins now: its time, and its cluster's name."""
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


_SHOWN = 300
"""Characters of a name that an error quotes."""


def find(path_or_name: FolderLike, folder: FolderLike | None = None) -> RunFolder:
    """Return a run's folder by its path, its name, or its cluster's name.

    Raises
    ------
    RunError
        There is none, or it is no run.
    """
    asked = os.fspath(path_or_name)
    runs = all_runs(folder)
    named = [run for run in runs if run.path.name == asked]
    # a cluster's name stands for its newest run
    named += [run for run in runs if re.fullmatch(rf"\d+-\d+-{re.escape(asked)}", run.path.name)]
    path = named[0].path if named else _expanded(asked)
    try:
        run = RunFolder(path)
        if run.is_run():
            return run
        why = _why(path)
    except OSError as error:  # such as a folder above that may not be read, or too long a name
        why = f"it cannot be read ({error.strerror})"
    raise RunError(f"run {_short(asked)}: {why}. {_hint(runs, folder)}")


def _short(asked: str) -> str:
    """Return a name in quotes, of which a long one's middle is left out."""
    text = repr(asked)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}...{text[-_SHOWN // 2 :]}"


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # the home of nobody
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
    """Remove the oldest runs that are not in use, until the limits hold with the `new` one."""
    runs = [run for run in all_runs(folder) if run.path != new]
    sizes = {run.path: run.size_bytes() for run in runs}
    for run in reversed(runs):
        if len(sizes) < limits.most_runs and sum(sizes.values()) <= limits.most_bytes:
            return
        if run.remove(_kept_s(run)):
            del sizes[run.path]


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
