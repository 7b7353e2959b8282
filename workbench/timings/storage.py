"""The run on disk that a kernel writes while its ranks train."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.timings.logged import MAX_NAMES
from workbench.timings.runs import FolderLike, new_path
from workbench.timings.samples import SampleLog
from workbench.timings.store import Rows, Store

if TYPE_CHECKING:
    from workbench.timings.verdict import Verdict
    from workbench.timings.writer import RunWriter

_log = logging.getLogger(__name__)

_PERIOD_S = 1.0
"""Seconds between writes."""
_FLUSH_S = 5.0
"""How long the end of a cell waits for the disk, in seconds."""
_CLOSE_S = 5.0
"""How long `close` waits for the disk, in seconds."""
_NOT_WRITTEN = (
    "this run is not being written to disk{where}: {error}. Training and the live view continue, "
    "and the records in memory are written as soon as possible"
)
_NO_VERDICT = (
    "the verdict of the last cell is not stored{where}: {error}. It is written as soon as possible"
)


class RunStorage:
    """Writes a store to disk as one run, about once a second, in a thread of its own.

    Training never waits long for a slow disk: `flush` and `close` give up after some seconds.

    Parameters
    ----------
    store
        The records to write.
    read
        Returns the store's rows with their clock offsets; see `LiveSource.read`.

    Attributes
    ----------
    path
        The run's folder; None before `begin`.
    errors
        Errors and their reasons if the run could not be written, the newest last.
    samples
        The samples of the VMs that are written with the run.
    """

    def __init__(self, store: Store, read: Callable[..., tuple[int, Rows]]) -> None:
        self._store = store
        self._read = read
        self.path: Path | None = None
        self.errors: list[str] = []
        self.samples = SampleLog()
        self._warned = 0
        self._refused = False
        """Whether `errors` reports names whose logged values are not kept."""
        self._facts: dict[str, Any] = {}
        self._written = (0, 0, 0)
        self._writer: RunWriter | None = None
        self._reported: set[tuple[str, type, int | None]] = set()
        self._requested = self._done = 0
        self._verdict: Verdict | None = None
        """The newest verdict, until it is written."""
        self._closing = False
        self._ended = False
        """Whether the thread has ended its writes, so that `flush` must not wait for it."""
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def begin(self, facts: dict[str, Any], folder: FolderLike | None) -> None:
        """Begin the run, or change its facts if it has already begun.

        Parameters
        ----------
        facts
            The contents of ``run.json``: plain values, including ``cluster``.
        folder
            The folder of all runs; see `runs.runs_folder`.
        """
        self.add(**facts)
        if self._thread is not None:
            return
        try:
            self.path = self.path or new_path(facts["cluster"], folder)
        except (OSError, RuntimeError) as error:  # the home folder is missing or unreadable
            self.errors.append(f"this run is not being written to disk: {error}")
            return
        self._thread = threading.Thread(target=self._run, name="workbench-run", daemon=True)
        self._thread.start()
        _log.info("the run of cluster %s is written to %s", facts["cluster"], self.path)

    def add(self, **facts: Any) -> None:
        """Add or change facts about the run."""
        self._facts |= facts

    def restore(self, path: Path) -> Verdict | None:
        """Continue the run that an earlier kernel began, and load the records that it wrote.

        Return the verdict of the run's last training cell, or None if it is not stored.
        """
        from workbench.timings.folder import RunFolder
        from workbench.timings.run import Run

        self.path = path
        if not RunFolder(path).is_run():
            return None  # no cell has trained yet
        run = Run(RunFolder(path))
        logged = run.logged()
        self._store.restore(run.rows(), run.records(), run.layouts(), logged)
        stored = self._store.total, len(self._store.collectives.between())
        self._written = *stored, self._store.logged.total
        _log.info("continuing the run %s with %d rows", path, self._store.total)
        return run.stored_verdict

    def flush(self, timeout_s: float = _FLUSH_S) -> bool:
        """Write everything received so far; return whether it was written in time."""
        if self._thread is None:
            return False
        with self._changed:
            if self._requested > self._done:
                timeout_s = 0.0  # an earlier flush has already waited for the disk
            self._requested += 1
            request = self._requested
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._done >= request or self._ended, timeout_s)
            is_written = self._done >= request
        if not is_written:
            _log.info("the disk did not finish writing %s within %g s", self.path, timeout_s)
        return is_written

    def write_verdict(self, verdict: Verdict) -> None:
        """Write the verdict of a cell with the next rows, or now if no thread writes rows."""
        with self._changed:
            self._verdict = verdict
            no_thread = self._closing or self._thread is None
        if no_thread:
            self._try(self._write_verdict, _NO_VERDICT)

    def warn(self) -> None:
        """Show errors since the last call as warnings in the cell's output."""
        if (refused := self._store.logged.refused) and not self._refused:
            self._refused = True
            self.errors.append(
                f"log({refused[0]}=...): its values are not kept, as the ranks have logged "
                f"{MAX_NAMES} other names. Log fewer names."
            )
        while self._warned < len(self.errors):
            warnings.warn(self.errors[self._warned], RuntimeWarning, stacklevel=3)
            self._warned += 1

    def close(self) -> None:
        """Write the remaining records and end the run's files, unless the disk hangs."""
        if self._thread is None:
            return
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            _log.info("the disk did not finish writing %s within %g s", self.path, _CLOSE_S)

    def _run(self) -> None:
        closing = False
        while not closing:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closing or self._requested > self._done, _PERIOD_S
                )
                closing = self._closing
                requested = self._requested
            if self._try(self._write, _NOT_WRITTEN):
                self._try(self._write_verdict, _NO_VERDICT)
            with self._changed:
                self._done = requested
                self._ended = closing
                self._changed.notify_all()
        if self._writer is not None:
            self._try(self._writer.close, _NOT_WRITTEN)

    def _write(self) -> None:
        if self._writer is None:
            if self._store.total == self._written[0]:
                return
            # imported in this thread, because loading pyarrow would delay the end of the first cell
            from workbench.timings.writer import RunWriter

            assert self.path is not None
            self._writer = RunWriter(
                self._store, self._read, self.path, self._facts, self._written, self.samples
            )
        self._writer.write()

    def _write_verdict(self) -> None:
        from workbench.timings.folder import RunFolder

        verdict = self._verdict
        if verdict is None or self.path is None:
            return
        RunFolder(self.path).write_verdict(verdict)
        with self._changed:
            if self._verdict is verdict:  # there is no newer verdict
                self._verdict = None

    def _try(self, action: Callable[[], None], failed: str) -> bool:
        """Call a function and return whether it succeeded; report each kind of error once."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - training and the view go on without a disk
            kind = failed, type(error), getattr(error, "errno", None)
            if kind not in self._reported:
                self._reported.add(kind)
                where = f" in {self.path}" if self._writer is not None else ""
                self.errors.append(failed.format(where=where, error=error))
                _log.info("the run %s was not written: %r", self.path, error)
            return False
        return True
