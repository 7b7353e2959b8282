"""A run on disk, with the same queries as a cluster's timings."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from workbench.errors import RunError
from workbench.ranks import checked_int
from workbench.resources import Snapshot
from workbench.timings.folder import RunFolder
from workbench.timings.logged import LoggedTable
from workbench.timings.queries import TimingsQueries
from workbench.timings.run_facts import RunFacts
from workbench.timings.runs import FolderLike, all_runs, checked_path, find
from workbench.timings.samples import RecordedSample, samples_frame
from workbench.timings.session_file import pack
from workbench.timings.source import checked_span
from workbench.timings.store import ROW, CollectiveRecord, Rows
from workbench.timings.verdict import Verdict
from workbench.wire import Layout

if TYPE_CHECKING:
    import pandas as pd


def open_run(path_or_name: FolderLike, folder: FolderLike | None = None) -> Run:
    """Return the timings of an earlier run, or of a run that another kernel is still writing.

    Data that cannot be read are reported by a warning and in `Run.problems`.

    Parameters
    ----------
    path_or_name
        The run's folder; its name, as shown by ``%timings list``; or the name of a cluster,
        for its newest run.
    folder
        The folder of all runs; see `runs.runs_folder`.

    Raises
    ------
    RunError
        There is no such run.
    """
    run = Run(find(path_or_name, folder))
    run.rows()
    for problem in run.problems:
        warnings.warn(f"run {run.name}: {problem}", UserWarning, stacklevel=2)
    return run


def list_runs(folder: FolderLike | None = None) -> list[Run]:
    """Return the runs in the folder of all runs (see `runs.runs_folder`), the newest first."""
    return [Run(run_folder) for run_folder in all_runs(folder)]


class Run(RunFacts, TimingsQueries):
    """A run on disk; each query reads what its files contain at that time."""

    def __init__(self, folder: RunFolder) -> None:
        super().__init__(folder)
        self._sizes: list[tuple[str, int]] | None = None
        self._rows = np.empty(0, dtype=ROW)

    def snapshot(self) -> dict[str, Snapshot]:
        """Return the snapshot that each VM's agent took; an empty dict if none can be read."""
        return self._reader.snapshots()

    def samples(self) -> pd.DataFrame:
        """Return the use of the VMs while cells ran, with a row per time, VM, device and figure.

        See `samples.samples_frame` for the columns; `recorded_samples` returns objects. The table
        is empty for a run of an earlier version. Samples are 2 s apart, and further apart in a run
        with hours of cells; see `samples.SampleLog`.
        """
        return samples_frame(self.recorded_samples())

    def recorded_samples(self) -> list[RecordedSample]:
        """Return the samples of all VMs in order of time."""
        return self._reader.samples()

    def save(self, path: FolderLike) -> Path:
        """Write the run as one session file (``.gwsession``), and return its path.

        `open_run` and ``%timings replay`` accept the file. An existing file is replaced.

        Raises
        ------
        RunError
            The file cannot be written.
        """
        return pack(self._folder, Path(checked_path(path, "path")).expanduser())

    @property
    def stored_verdict(self) -> Verdict | None:
        """The stored verdict of the last training cell, or None.

        It is None if no verdict is stored; if the verdict cannot be read, which `problems` reports;
        or if it is of an earlier cell, because the last cell is still running or its kernel ended
        before the verdict was stored.
        """
        try:
            verdict = self._folder.read_verdict()
            return None if verdict is None or verdict.cell < _newest_cell(self) else verdict
        except (OSError, ValueError, RunError) as error:
            problem = f"verdict.json: {getattr(error, 'strerror', None) or error}"
            if problem not in self._reader.problems:
                self._reader.problems.append(problem)
            return None

    @property
    def iterations(self) -> int:
        """The number of iterations."""
        counted = self.facts.get("iterations") if self.state == "ended" else None
        if counted is not None:
            return int(counted)
        rows = self.rows()
        return int(rows["iteration"].max()) + 1 if len(rows) else 0

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows())

    def rows(self, start: int = 0) -> Rows:
        """Return a copy of the raw rows from index `start` on (see `store.ROW`)."""
        sizes = self._folder.sizes()
        if not sizes:
            raise RunError(
                f"run {self.name}: its folder {self.path} is gone. Choose another run with "
                "%timings list."
            )
        if sizes != self._sizes:
            self._rows = self._reader.rows()
            self._sizes = sizes
        return self._rows[checked_int(start, "start") :].copy()

    def records(self, first: int | None = None, last: int | None = None) -> list[CollectiveRecord]:
        """Return the records of the iterations `first` to `last`; without both, the newest."""
        return self._reader.records(*checked_span(first, last))

    def logged(self) -> LoggedTable:
        """Return the values that cells have logged with their iterations (`workbench.log`)."""
        return self._reader.logged()

    def layouts(self) -> dict[tuple[int, int], Layout]:
        """Return the layouts that the ranks used last, by rank and number."""
        return self._reader.layouts()


def _newest_cell(run: Run) -> int:
    """Return the cell of the newest iterations; the facts have it if the run has ended."""
    recorded = run.facts.get("newest_cell") if run.state == "ended" else None
    return int(run.rows()["cell"].max(initial=0) if recorded is None else recorded)
