"""A run as its folder tells it: the same questions as while it trained."""

from __future__ import annotations

import warnings
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from workbench.errors import RunError
from workbench.timings.answers import Answers
from workbench.timings.arrivals import ALIGNED
from workbench.timings.folder import RunFolder
from workbench.timings.reader import RunReader
from workbench.timings.runs import FolderLike, all_runs, find
from workbench.timings.store import CollectiveRecord, Rows
from workbench.wire import Layout


def open_run(path_or_name: FolderLike, folder: FolderLike | None = None) -> Run:
    """Return the timings of an earlier run, or of one that another kernel trains now.

    What cannot be read of it is said in a warning, and in `Run.problems`; all
    the rest is there.

    Parameters
    ----------
    path_or_name
        Of the run's folder; its name as ``%timings list`` shows it; or a
        cluster's name, for its newest run.
    folder
        Where runs are kept; see `runs.runs_folder`.

    Raises
    ------
    RunError
        There is no such run, or what is there is none.
    """
    run = Run(find(path_or_name, folder))
    run.rows()
    for problem in run.problems:
        warnings.warn(f"run {run.name}: {problem}", UserWarning, stacklevel=2)
    return run


def list_runs(folder: FolderLike | None = None) -> list[Run]:
    """Return the runs that are kept, the newest first; see `runs.runs_folder` for where."""
    return [Run(one) for one in all_runs(folder)]


class Run(Answers):
    """Answers from a run's files, each time from what they hold by then.

    Parameters
    ----------
    folder
        Of the run.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._reader = RunReader(folder)
        self._sizes: list[tuple[str, int]] | None = None
        self._rows = np.empty(0, dtype=ALIGNED)

    @property
    def facts(self) -> dict[str, Any]:
        """All that was written down of what the run was."""
        return self._reader.facts()

    @property
    def problems(self) -> list[str]:
        """What of it cannot be read, and why, as far as was looked."""
        return list(self._reader.problems)

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self._folder.path

    @property
    def name(self) -> str:
        """What ``%timings open`` calls it."""
        return self.path.name

    @property
    def cluster(self) -> str:
        """The name of the cluster that trained."""
        return str(self.facts.get("cluster", "not known"))

    @property
    def ranks(self) -> list[dict[str, Any]]:
        """The ranks: ``rank``, ``vm``, ``gpu``, ``nic`` and more, as they were last."""
        return list(self.facts.get("ranks") or [])

    def places(self) -> dict[int, str]:
        """Return the host name of each rank's VM, where known."""
        return {
            int(one["rank"]): str(one["vm"]) for one in self.ranks if {"rank", "vm"} <= set(one)
        }

    @property
    def started(self) -> datetime | None:
        """When its first iteration was written, in local time; None where not known."""
        seconds = self.facts.get("started_s")
        return None if seconds is None else datetime.fromtimestamp(seconds).astimezone()

    @property
    def state(self) -> str:
        """``"running"`` while a kernel writes it, ``"ended"``, or ``"cut off"``."""
        if self._folder.in_use():
            return "running"
        return "ended" if "ended_s" in self.facts else "cut off"

    @property
    def iterations(self) -> int:
        """How many iterations it has."""
        counted = self.facts.get("iterations") if self.state == "ended" else None
        if counted is not None:
            return int(counted)
        rows = self.rows()
        return int(rows["iteration"].max()) + 1 if len(rows) else 0

    @property
    def size_bytes(self) -> int:
        """What it takes on disk."""
        return self._folder.size_bytes()

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows())

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<Run {self.name}: cluster {self.cluster}, {self.state}>"

    def rows(self, start: int = 0) -> Rows:
        """Return a copy of the raw rows from the `start`-th on (see `arrivals.ALIGNED`)."""
        sizes = self._folder.sizes()
        if not sizes:
            raise RunError(
                f"run {self.name}: its folder {self.path} is gone. Choose another run with "
                "%timings list."
            )
        if sizes != self._sizes:
            self._rows = self._reader.rows()
            self._sizes = sizes
        return self._rows[start:].copy()

    def records(self, first: int | None = None, last: int | None = None) -> list[CollectiveRecord]:
        """Return the records of single collectives, of some iterations or the newest."""
        return self._reader.records(first, last)

    def layouts(self) -> dict[tuple[int, int], Layout]:
        """Return the layouts that the ranks used last, by rank and number."""
        return self._reader.layouts()
