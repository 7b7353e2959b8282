"""Writes what a store holds into a run's folder, from where it stopped."""

from __future__ import annotations

import contextlib
import copy
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from workbench import __version__
from workbench.safefiles import make_private_folder
from workbench.timings import schema
from workbench.timings.folder import FORMAT, HEARTBEAT_S, RunFolder
from workbench.timings.runs import Limits, prune
from workbench.timings.store import CollectiveRecord, Rows, Store
from workbench.timings.stream import StreamFile
from workbench.wire import IterationRecord, Layout
from workbench.wire.record import VERSION

RECORD_KEYS = ("iteration", "rank", "layout_key")
"""In front of a record's fields; ``layout_key`` is a row's ``key`` in the same kernel's layouts."""
LAYOUT_KEYS = ("key", "rank")
"""In front of a layout's fields."""

_BATCH_ROWS = 1 << 14
_BATCH_RECORDS = 1 << 10


class RunWriter:
    """One kernel's part of a run.

    The folder is made with the first row: a cluster that trains nothing leaves
    none. On disk an iteration of one rank takes about 40 bytes, and 1.6 KB with
    its 161 collectives (zstd; 2 ranks at 10 iterations a second: 120 MB an
    hour); each flush adds 2 KB, and a layout of 161 names 3 KB, once. Single
    collectives end where a run alone takes what all runs may; iterations do not.

    Parameters
    ----------
    store
        What to write.
    read
        Gives its rows with their marks: ``Timings.read``.
    path
        Of the run's folder.
    facts
        What the run is, for ``run.json``; may change.
    written
        Rows and records of `store` that the folder has already.
    """

    def __init__(
        self,
        store: Store,
        read: Callable[[int], tuple[int, Rows]],
        path: Path,
        facts: dict[str, Any],
        written: tuple[int, int] = (0, 0),
    ) -> None:
        self.facts = facts
        self._store = store
        self._read = read
        self._folder = RunFolder(path)
        self._rows, self._records = written
        self._iterations = 0
        self._limits = Limits()
        self._full = False
        self._streams: dict[str, StreamFile] = {}
        self._segment = -1
        self._layouts: dict[tuple[int, int], tuple[int, Layout]] = {}
        self._next_key = 0
        self._new_layouts: list[tuple[int, int, Layout]] = []
        self._lock: int | None = None
        self._beaten_s = 0.0
        self._own: dict[str, Any] = {}
        self._known: dict[str, Any] = {}

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self._folder.path

    def write(self) -> None:
        """Write what is new; a part that fails is tried again with the next call.

        Raises
        ------
        OSError
            It cannot be written now; what is in the files stays right.
        UsageError
            A limit in the environment is none.
        """
        if self._lock is None:
            if self._store.total == self._rows:
                return
            self._open()
        self._write_facts()
        self._write_rows()
        self._write_records()
        if time.monotonic() - self._beaten_s > HEARTBEAT_S:
            self._folder.beat()
            self._beaten_s = time.monotonic()

    def close(self) -> None:
        """End the files and say so in ``run.json``; raises as `write`."""
        if self._lock is None:
            return
        try:
            for kind, stream in self._streams.items():
                with contextlib.suppress(OSError):  # it stays as one that was cut off
                    stream.close()
                    path = self._folder.stream(kind, self._segment)
                    self._own.setdefault("closed", {})[path.name] = stream.size_bytes
            missing = self._store.total - self._rows
            if missing:
                self._leave_out(f"{missing} rows that the disk did not take")
            self._own |= {
                "ended_s": time.time(),
                "iterations": max(self._iterations, self._own.get("iterations", 0)),
                "dropped": self._store.dropped,
            }
            self._write_facts()
        finally:
            self._streams = {}
            os.close(self._lock)
            self._lock = None

    def _open(self) -> None:
        self._limits = Limits.from_environment()
        make_private_folder(self.path)
        self._segment = max(self._folder.segments(), default=-1) + 1
        self._own = {"started_s": time.time()} | self._earlier_facts()
        self._own |= {
            "format": FORMAT,
            "package": __version__,
            "record": VERSION,
            "kernel": {"host": socket.gethostname(), "pid": os.getpid()},
        }
        self._own.pop("ended_s", None)
        self._lock = self._folder.lock()
        prune(self.path.parent, self._limits, self.path)

    def _earlier_facts(self) -> dict[str, Any]:
        try:
            return self._folder.read_facts()
        except (OSError, ValueError):
            return {}

    def _write_facts(self) -> None:
        facts = self._own | self.facts
        if facts != self._known:
            self._folder.write_facts(facts)
            self._known = copy.deepcopy(facts)

    def _write_rows(self) -> None:
        first, rows = self._read(self._rows)
        if first > self._rows:
            self._leave_out(f"{first - self._rows} rows: memory forgot them before the disk took")
            self._rows = first
        for start in range(0, len(rows), _BATCH_ROWS):
            part = rows[start : start + _BATCH_ROWS]
            self._append("iterations", schema.rows_to_batch(part))
            self._rows = first + start + len(part)
            self._iterations = max(self._iterations, int(part["iteration"].max()) + 1)

    def _write_records(self) -> None:
        first, records = self._store.read_collectives(self._records)
        if first > self._records:
            self._leave_out(
                f"single collectives of {first - self._records} records: memory forgot them "
                "before the disk took"
            )
            self._records = first
        if records and self._is_full():
            self._records = first + len(records)
            return
        keys = self._layout_keys(records)
        for start in range(0, len(records), _BATCH_RECORDS):
            part = records[start : start + _BATCH_RECORDS]
            columns = (
                [one.iteration for one in part],
                [one.rank for one in part],
                keys[start : start + _BATCH_RECORDS],
            )
            named = dict(zip(RECORD_KEYS, columns, strict=True))
            batch = schema.to_batch(IterationRecord, named, [one.record for one in part])
            self._append("collectives", batch)
            self._records = first + start + len(part)

    def _is_full(self) -> bool:
        """Whether the run leaves no room for single collectives any more."""
        size = sum(stream.size_bytes for stream in self._streams.values())
        if not self._full and size > self._limits.most_bytes:
            self._full = True
            self._leave_out(
                f"single collectives from iteration {self._iterations} on: the run takes the "
                f"{self._limits.most_bytes} bytes that all runs may take"
            )
        return self._full

    def _layout_keys(self, records: list[CollectiveRecord]) -> list[int]:
        """Return the keys of the records' layouts, once all layouts are written."""
        used = [((one.rank, one.layout.number), one.layout) for one in records]
        keys = []
        for place, layout in (*used, *self._store.layouts().items()):
            known = self._layouts.get(place)
            if known is None or known[1] != layout:
                known = self._next_key, layout
                self._next_key += 1
                self._layouts[place] = known
                self._new_layouts.append((known[0], place[0], layout))
            keys.append(known[0])
        if self._new_layouts:
            numbers, ranks, layouts = zip(*self._new_layouts, strict=True)
            named = dict(zip(LAYOUT_KEYS, (numbers, ranks), strict=True))
            self._append("layouts", schema.to_batch(Layout, named, layouts))
            self._new_layouts = []
        return keys[: len(records)]

    def _append(self, kind: str, batch: pa.RecordBatch) -> None:
        if kind not in self._streams:
            path = self._folder.stream(kind, self._segment)
            self._streams[kind] = StreamFile(path, batch.schema)
        self._streams[kind].append(batch)

    def _leave_out(self, text: str) -> None:
        self._own.setdefault("left_out", []).append(text)
