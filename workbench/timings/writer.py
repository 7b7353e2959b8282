"""Writes a store into a run's folder; each write continues where the last write ended."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.lib.recfunctions import repack_fields

from workbench._version import __version__
from workbench.safefiles import make_private_folder
from workbench.timings import arrow_files
from workbench.timings.collective_records import RecordBlock
from workbench.timings.folder import FORMAT, SNAPSHOTS, RunFolder
from workbench.timings.logged import MAX_NAMES
from workbench.timings.run_lock import HEARTBEAT_S
from workbench.timings.runs import RunLimits, prune
from workbench.timings.samples import SampleLog
from workbench.timings.store import Rows, Store
from workbench.wire import Layout
from workbench.wire.record import VERSION

_log = logging.getLogger(__name__)

_BATCH_ROWS = 1 << 14
"""Maximum number of rows in a batch of the file."""
_BATCH_RECORDS = 1 << 10
"""Maximum number of records in a batch of the file."""
_OFFSETS_EVERY_S = 15.0
"""Seconds between corrections of clock offsets; bursts of pings are as far apart."""
_OFFSETS_CHANGE_S = 120.0
"""Seconds after which the clock offset of a written row no longer changes."""


class RunWriter:
    """Writes the files of one run, for one kernel.

    The folder is created with the first row, so a cluster that trains nothing leaves no folder.
    On disk, an iteration of one rank takes about 40 bytes, or 1.6 KB with 161 collectives
    (zstd; 2 ranks at 10 iterations a second: 120 MB an hour). Each flush adds 2 KB, and each layout
    with 161 names adds 3 KB once. If the run alone exceeds the limit for all runs, single
    collectives are no longer written, but iterations are.

    Parameters
    ----------
    store
        The records to write.
    read
        Returns the store's rows with their clock offsets; see `LiveSource.read`.
    path
        The run's folder.
    facts
        The contents of ``run.json``; the key `SNAPSHOTS` has the contents of ``snapshots.json``.
        The facts may change.
    written
        How many rows, records and logged values of `store` are already in the folder.
    samples
        The samples of the VMs to write.
    """

    def __init__(
        self,
        store: Store,
        read: Callable[..., tuple[int, Rows]],
        path: Path,
        facts: dict[str, Any],
        written: tuple[int, int, int] = (0, 0, 0),
        samples: SampleLog | None = None,
    ) -> None:
        self._samples = SampleLog() if samples is None else samples
        self._facts = facts
        self._store = store
        self._read = read
        self._folder = RunFolder(path)
        self._rows, self._records, self._logged = written
        self._iterations = 0
        self._limits = RunLimits()
        self._full = False
        self._streams: dict[str, arrow_files.StreamFile] = {}
        self._segment = -1
        self._layouts: dict[tuple[int, int], tuple[int, Layout]] = {}
        self._next_key = 0
        self._new_layouts: list[tuple[int, int, Layout]] = []
        self._lock: int | None = None
        self._heartbeat_s = 0.0
        self._own: dict[str, Any] = {}
        self._facts_on_disk: dict[str, Any] = {}
        self._snapshots_on_disk: dict[str, Any] | None = None
        self._recent: list[tuple[float, Rows]] = []
        """The offsets of the latest rows, after the time at which they were written."""
        self._corrected_s = time.monotonic()

    def write(self) -> None:
        """Write all data since the last call; the next call repeats a batch that failed.

        Raises
        ------
        OSError
            The disk is full, for example; the files remain valid.
        UsageError
            An environment variable contains an invalid limit.
        """
        if self._lock is None:
            if self._store.total == self._rows:
                return
            self._open()
        self._write_facts()
        self._write_rows()
        self._write_records()
        self._write_samples()
        self._write_logged()
        now = time.monotonic()
        if now - self._corrected_s > _OFFSETS_EVERY_S:
            self._write_offsets()
        if now - self._heartbeat_s > HEARTBEAT_S:
            self._folder.lock.beat()
            self._heartbeat_s = now

    def close(self) -> None:
        """End the files and mark the run as ended; raise the exceptions of `write`."""
        if self._lock is None:
            return
        try:
            with contextlib.suppress(OSError):  # the disk may be full
                self._write_offsets()
            for kind, stream in self._streams.items():
                # if this fails, the file ends as if the kernel had been killed
                with contextlib.suppress(OSError):
                    stream.close()
                    path = self._folder.stream(kind, self._segment)
                    self._own.setdefault("closed", {})[path.name] = stream.size_bytes
            if self._samples.dropped:
                self._leave_out(
                    f"{self._samples.dropped} samples of VMs: more waited for the first iteration, "
                    "or for the disk, than memory keeps"
                )
            if refused := self._store.logged.refused:
                self._leave_out(
                    f"logged values of {', '.join(refused)}: only {MAX_NAMES} names are kept"
                )
            missing = self._store.total - self._rows
            if missing:
                self._leave_out(f"{missing} rows that the disk did not take")
            self._own |= {
                "ended_s": time.time(),
                "iterations": max(self._iterations, self._own.get("iterations", 0)),
                "newest_cell": self._store.newest_cell,
                "dropped": self._store.counts.dropped,
            }
            self._write_facts()
        finally:
            self._streams = {}
            os.close(self._lock)
            self._lock = None
            _log.info("closed the run %s after %d rows", self._folder.path, self._rows)

    def _open(self) -> None:
        """Create the folder, lock it, and remove old runs."""
        self._limits = RunLimits.from_environment()
        make_private_folder(self._folder.path)
        self._segment = max(self._folder.segments(), default=-1) + 1
        earlier: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            earlier = self._folder.read_facts()
        self._own = {"started_s": time.time()} | earlier
        self._own |= {
            "format": FORMAT,
            "package": __version__,
            "record": VERSION,
            # relates the ranks' times on the kernel's clock to the time of day of samples
            "clock": {"time_s": time.time(), "perf_ns": time.perf_counter_ns()},
            "kernel": {"host": socket.gethostname(), "pid": os.getpid()},
        }
        self._own.pop("ended_s", None)
        self._lock = self._folder.lock.acquire()
        _log.info("writing the run %s as kernel %d", self._folder.path, self._segment)
        prune(self._folder.path.parent, self._limits, self._folder.path)

    def _write_facts(self) -> None:
        facts = self._own | self._facts
        snapshots = facts.pop(SNAPSHOTS, None)
        if snapshots is not self._snapshots_on_disk:
            self._folder.write_snapshots(snapshots)
            self._snapshots_on_disk = snapshots
        if facts != self._facts_on_disk:
            self._folder.write_facts(facts)
            self._facts_on_disk = copy.deepcopy(facts)

    def _write_rows(self) -> None:
        first, rows = self._read(self._rows)
        if first > self._rows:
            self._leave_out(
                f"{first - self._rows} rows: the disk was too slow or full, and memory is limited"
            )
            self._rows = first
            self._recent = []
        for start in range(0, len(rows), _BATCH_ROWS):
            batch = rows[start : start + _BATCH_ROWS]
            self._append("iterations", arrow_files.rows_to_batch(batch))
            self._rows = first + start + len(batch)
            self._iterations = max(self._iterations, int(batch["iteration"].max()) + 1)
            self._recent.append((time.monotonic(), _offsets(batch)))

    def _write_offsets(self) -> None:
        """Write the clock offsets that pings have corrected since their rows were written.

        Without these corrections, waiting times on disk would differ from the live ones.
        """
        self._corrected_s = now = time.monotonic()
        start = self._rows - sum(len(before) for _, before in self._recent)
        # read in parts, because the receiver of records waits for each of these calls
        for _, before in self._recent:
            first, rows = self._read(start, start + len(before))
            written = before[first - start :]  # memory no longer has the earlier rows
            start += len(before)
            changed = rows[_offsets(rows) != written]
            if len(changed):
                batch = arrow_files.rows_to_batch(changed, arrow_files.OFFSET_COLUMNS)
                self._append("offsets", batch)
            written[:] = _offsets(rows)
        self._recent = [
            (written_s, offsets)
            for written_s, offsets in self._recent
            if written_s > now - _OFFSETS_CHANGE_S
        ]

    def _write_records(self) -> None:
        first, records = self._store.collectives.read(self._records)
        if first > self._records:
            self._leave_out(
                f"single collectives of {first - self._records} records: the disk was too slow "
                "or full, and memory is limited"
            )
            self._records = first
        if len(records) and self._is_full():
            self._records = first + len(records)
            return
        keys = self._layout_keys(records)
        for start in range(0, len(records), _BATCH_RECORDS):
            part = records[start : start + _BATCH_RECORDS]
            batch = arrow_files.records_to_batch(part, keys[start : start + _BATCH_RECORDS])
            self._append("collectives", batch)
            self._records = first + start + len(part)

    def _write_samples(self) -> None:
        pending = self._samples.take()
        if not pending or self._is_full():
            return
        try:
            self._append("samples", arrow_files.samples_to_batch(pending))
        except OSError:
            self._samples.put_back(pending)
            raise

    def _write_logged(self) -> None:
        while True:
            end, logged = self._store.logged.read(self._logged, _BATCH_ROWS)
            if end == self._logged:
                break
            if len(logged.values) and not self._is_full():
                self._append("logged", arrow_files.logged_to_batch(logged))
            self._logged = end

    def _is_full(self) -> bool:
        """Whether the run has reached the size limit for collectives, samples and logged values."""
        size = sum(stream.size_bytes for stream in self._streams.values())
        if not self._full and size > self._limits.max_bytes:
            self._full = True
            self._leave_out(
                f"single collectives from iteration {self._iterations} on, and samples of VMs "
                "and logged values from that time on: the run takes the "
                f"{self._limits.max_bytes} bytes that all runs may take"
            )
        return self._full

    def _layout_keys(self, records: RecordBlock) -> list[int]:
        """Write new layouts; return the keys of the records' layouts."""
        layouts = records.layouts.tolist()
        used = zip(records.ranks.tolist(), layouts, strict=True)
        keys = [self._layout_key(rank, layout) for rank, layout in used]
        for (rank, _), layout in self._store.layouts().items():
            self._layout_key(rank, layout)
        if self._new_layouts:
            numbers, ranks, layouts = zip(*self._new_layouts, strict=True)
            named = dict(zip(arrow_files.LAYOUT_KEYS, (numbers, ranks), strict=True))
            self._append("layouts", arrow_files.to_batch(Layout, named, layouts))
            self._new_layouts = []
        return keys

    def _layout_key(self, rank: int, layout: Layout) -> int:
        """Return the key of a rank's layout; a new layout gets the next key."""
        keyed = self._layouts.get((rank, layout.number))
        if keyed is None or (keyed[1] is not layout and keyed[1] != layout):
            keyed = self._layouts[rank, layout.number] = self._next_key, layout
            self._next_key += 1
            self._new_layouts.append((keyed[0], rank, layout))
        return keyed[0]

    def _append(self, kind: str, batch: pa.RecordBatch) -> None:
        """Append a batch to the file of a kind, which is created for the first batch."""
        if kind not in self._streams:
            path = self._folder.stream(kind, self._segment)
            self._streams[kind] = arrow_files.StreamFile(path, batch.schema)
        self._streams[kind].append(batch)

    def _leave_out(self, text: str) -> None:
        """Add a sentence to the facts on data that the run lacks."""
        self._own.setdefault("left_out", []).append(text)
        _log.info("the run %s is incomplete; run.json has the reasons", self._folder.path)


def _offsets(rows: Rows) -> Rows:
    """Return a copy of the clock offsets of rows, and their uncertainties."""
    return np.asarray(repack_fields(rows[["offset_ns", "uncertainty_ns"]]))
