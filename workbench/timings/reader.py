"""Reads the files of a run; damaged or unfinished files are read as far as possible."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from workbench.errors import SnapshotError, printable
from workbench.resources import Snapshot, Unknown
from workbench.resources.usage import Sample
from workbench.safefiles import load_json
from workbench.timings import arrow_files, samples
from workbench.timings.arrow_files import (
    LAYOUT_KEYS,
    OFFSET_COLUMNS,
    RECORD_KEYS,
    ROW_KEYS,
)
from workbench.timings.collective_records import MAX_COLLECTIVE_RECORDS
from workbench.timings.folder import FORMAT, RunFolder
from workbench.timings.logged import NOTHING, VALUE, LoggedTable
from workbench.timings.samples import RecordedSample
from workbench.timings.store import ROW, CollectiveRecord, Rows
from workbench.wire import IterationRecord, Layout

_log = logging.getLogger(__name__)

_Layouts = dict[int, tuple[int, Layout]]
"""Rank and layout, by the key of the layout in its file."""


class RunReader:
    """Reads the files of a run, which may still grow.

    Attributes
    ----------
    problems
        Sentences on the data that could not be read so far, with the reasons.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.problems: list[str] = []
        self._folder = folder

    def facts(self) -> dict[str, Any]:
        """Return the recorded facts about the run."""
        try:
            facts = self._folder.read_facts()
        except (OSError, ValueError) as error:
            self._report(f"the facts about the run cannot be read ({error}), but its timings can")
            return {}
        facts = self._checked(facts)
        run_format = facts.get("format", FORMAT)
        if run_format != FORMAT:
            self._report(
                f"it has format {run_format} of gradient-workbench "
                f"{facts.get('package', 'of another version')}, and this version reads format "
                f"{FORMAT}: columns known to both are read"
            )
        for text in facts.get("left_out") or []:
            self._report(f"left out: {text}")
        if facts.get("dropped"):
            self._report(f"left out: {facts['dropped']} records that were lost before they arrived")
        return facts

    def _checked(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Return the facts with valid values as printable text; report the invalid ones."""
        plain = _printable(facts)
        invalid = [name for name in plain if name in _FACTS and not _FACTS[name](plain[name])]
        if invalid:
            self._report(f"run.json was damaged or edited: {', '.join(invalid)} cannot be read")
        return {name: value for name, value in plain.items() if name not in invalid}

    def snapshots(self) -> dict[str, Snapshot]:
        """Return the snapshot of each VM; an empty dict if the snapshots cannot be read."""
        try:
            plain = self._folder.read_snapshots()
            return {
                printable(vm): Snapshot.from_plain(snapshot)
                for vm, snapshot in plain.items()
                if snapshot
            }
        except FileNotFoundError:  # an earlier version wrote the run
            return {}
        except (OSError, ValueError, AttributeError, SnapshotError) as error:
            self._report(f"the hardware of its VMs cannot be read ({error})")
            return {}

    def samples(self) -> list[RecordedSample]:
        """Return the samples of the VMs in order of time; an empty list if there are none."""
        recorded = []
        for number in self._folder.segments():
            for batch in self._batches("samples", number, arrow_files.SAMPLES, samples.COLUMNS):
                columns = (batch.column(name).to_pylist() for name in samples.COLUMNS)
                for time_s, vm, text in zip(*columns, strict=True):
                    try:
                        recorded.append(_sample(time_s, vm, text))
                    except (ValueError, TypeError, SnapshotError) as error:
                        self._report(f"some samples of its VMs cannot be read ({error})")
        return sorted(recorded, key=lambda sample: sample.time_s)

    def rows(self) -> Rows:
        """Return all rows, in order of arrival."""
        parts = [np.empty(0, dtype=ROW)]
        for number in self._folder.segments():
            rows = self._read_rows("iterations", number, arrow_files.row_schema())
            offsets = self._read_rows("offsets", number, arrow_files.row_schema(OFFSET_COLUMNS))
            _set_offsets(rows, offsets)
            parts.append(rows)
        return np.concatenate(parts)

    def _read_rows(self, kind: str, number: int, schema: pa.Schema) -> Rows:
        batches = self._batches(kind, number, schema, ROW_KEYS)
        return np.concatenate([np.empty(0, ROW), *map(arrow_files.batch_to_rows, batches)])

    def records(self, first: int | None, last: int | None) -> list[CollectiveRecord]:
        """Return the records of the iterations `first` to `last`; without both, the newest."""
        limit = MAX_COLLECTIVE_RECORDS if first is None and last is None else None
        schema = arrow_files.schema_of(IterationRecord, *RECORD_KEYS)
        selected: deque[tuple[int, pa.RecordBatch]] = deque()
        count = 0
        for number in self._folder.segments():
            for batch in self._batches("collectives", number, schema, RECORD_KEYS):
                selected.append((number, _between(batch, first, last)))
                count += selected[-1][1].num_rows
                while limit is not None and count - selected[0][1].num_rows >= limit:
                    count -= selected.popleft()[1].num_rows
        # layouts are read after the records, because a writer writes layouts before their records
        layouts = {number: self._layouts(number) for number in {number for number, _ in selected}}
        records = [
            record for number, batch in selected for record in self._named(batch, layouts[number])
        ]
        return records if limit is None else records[-limit:]

    def logged(self) -> LoggedTable:
        """Return the values that cells logged; names that cannot be shown are made printable."""
        names: dict[str, int] = {}
        parts = [NOTHING.values]
        for number in self._folder.segments():
            schema = arrow_files.LOGGED
            for batch in self._batches("logged", number, schema, schema.names):
                table = batch.to_pydict()
                numbers = [names.setdefault(printable(name), len(names)) for name in table["name"]]
                rows = zip(table["iteration"], table["rank"], numbers, table["value"], strict=True)
                parts.append(np.array(list(rows), VALUE))
        return LoggedTable(tuple(names), np.concatenate(parts))

    def layouts(self) -> dict[tuple[int, int], Layout]:
        """Return the layouts that the ranks used last, by rank and number."""
        return {
            (rank, layout.number): layout
            for number in self._folder.segments()
            for rank, layout in self._layouts(number).values()
        }

    def _layouts(self, number: int) -> _Layouts:
        by_key: _Layouts = {}
        schema = arrow_files.schema_of(Layout, *LAYOUT_KEYS)
        for batch in self._batches("layouts", number, schema, LAYOUT_KEYS):
            keys, ranks = (batch.column(name).to_pylist() for name in LAYOUT_KEYS)
            layouts = [
                replace(
                    layout,
                    names=tuple(map(printable, layout.names)),
                    groups=tuple(map(printable, layout.groups)),
                )
                for layout in arrow_files.from_batch(Layout, batch)
            ]
            by_key |= dict(zip(keys, zip(ranks, layouts, strict=True), strict=True))
        return by_key

    def _named(self, batch: pa.RecordBatch, layouts: _Layouts) -> Iterator[CollectiveRecord]:
        """Yield the records of a batch that have a valid layout; report if there are others."""
        iterations, ranks, keys = (batch.column(name).to_pylist() for name in RECORD_KEYS)
        records = arrow_files.from_batch(IterationRecord, batch)
        for iteration, rank, key, record in zip(iterations, ranks, keys, records, strict=True):
            layout = layouts[key][1] if key in layouts else None
            # each list has one item per collective, unless the file is damaged
            if (
                layout is not None
                and len(arrow_files.lengths(layout) | arrow_files.lengths(record)) == 1
            ):
                yield CollectiveRecord(iteration, record, rank, layout)
            else:
                self._report("some collectives are left out: their names cannot be read")

    def _batches(
        self, kind: str, number: int, schema: pa.Schema, keys: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield a file's batches with the columns of `schema` that it has; report problems."""
        path = self._folder.stream(kind, number)
        is_being_written = self._folder.lock.in_use()
        facts = self.facts()
        closed = facts.get("closed") or {}
        try:
            reader = arrow_files.StreamReader(path)
        except OSError as error:
            if kind == "iterations" or path.name in closed:
                self._report(f"{path.name} cannot be read: {error}")
            return
        columns = self._common_columns(path.name, reader.schema, schema, keys)
        if columns:
            yield from (batch.select(columns) for batch in reader)
        if is_being_written or (reader.closed and (not facts or "ended_s" in facts)):
            return
        if reader.rest_bytes or path.name in closed:
            size = closed.get(path.name, reader.size_bytes)
            self._report(
                f"{path.name} is cut short or damaged: the first "
                f"{reader.size_bytes - reader.rest_bytes} of {size} bytes can be read"
                + (f" ({reader.problem})" if reader.problem else "")
            )
        else:
            self._report(
                "its kernel ended without closing the files (killed, power failure or full disk), "
                "or it was saved while it ran: the last second before that is probably missing"
            )

    def _common_columns(
        self, name: str, file_schema: pa.Schema | None, schema: pa.Schema, keys: Sequence[str]
    ) -> list[str]:
        """Return the columns that a file has in common with `schema`, and report the others.

        Return an empty list if the file lacks a key.
        """
        if file_schema is None:
            return []
        common = [
            column
            for column in schema.names
            if column in file_schema.names
            and file_schema.field(column).type == schema.field(column).type
        ]
        missing = [column for column in schema.names if column not in common]
        unknown = [column for column in file_schema.names if column not in schema.names]
        if missing_keys := [column for column in missing if column in keys]:
            self._report(
                f"{name} is not a file of a run: it has no valid column {', '.join(missing_keys)}"
            )
            return []
        if missing:
            self._report(f"{name} is of another version: it lacks {', '.join(missing)}, read as 0")
        if unknown:
            self._report(f"{name} is of another version: {', '.join(unknown)} not read")
        return common

    def _report(self, problem: str) -> None:
        problem = printable(problem)  # the text may quote the file
        if problem not in self.problems:
            self.problems.append(problem)
            _log.debug("run %s: %s", self._folder.path, problem)


def _sample(time_s: float, vm: str, text: str) -> RecordedSample:
    """Return a sample of the file.

    Raises
    ------
    ValueError, TypeError, SnapshotError
        The sample is invalid.
    """
    if not 0 <= time_s <= _LAST_S:
        raise ValueError(f"the time {time_s}")
    plain = load_json(text)
    if isinstance(plain, dict) and set(plain) == {"unknown"}:
        return RecordedSample(time_s, printable(vm), Unknown(printable(str(plain["unknown"]))))
    return RecordedSample(time_s, printable(vm), Sample.from_plain(plain))


def _between(batch: pa.RecordBatch, first: int | None, last: int | None) -> pa.RecordBatch:
    if first is not None:
        batch = batch.filter(pc.greater_equal(batch.column("iteration"), first))
    if last is not None:
        batch = batch.filter(pc.less_equal(batch.column("iteration"), last))
    return batch


def _set_offsets(rows: Rows, corrections: Rows) -> None:
    """Replace the clock offsets of rows by corrections; the latest correction of a row wins."""
    if not len(rows) or not len(corrections):
        return
    keys, corrected_keys = (
        (part["iteration"] << 32) + part["rank"].astype(np.int64) for part in (rows, corrections)
    )
    order = np.argsort(keys, kind="stable")
    position = np.minimum(np.searchsorted(keys[order], corrected_keys), len(rows) - 1)
    has_row = keys[order[position]] == corrected_keys
    for name in ("offset_ns", "uncertainty_ns"):
        rows[name][order[position[has_row]]] = corrections[name][has_row]


def _printable(value: Any) -> Any:
    """Return plain JSON with printable texts, because a run may come from another user."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(key): _printable(nested) for key, nested in value.items()}
    return [_printable(nested) for nested in value] if isinstance(value, list) else value


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value <= _LAST_S


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << 62


def _is_list(value: Any, is_item: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(is_item, value))


def _is_rank(value: Any) -> bool:
    return isinstance(value, dict) and _is_count(value.get("rank", 0))


_LAST_S = 2.0**37
"""Maximum time in seconds, in the year 6325; later times cannot be shown as a date."""
_FACTS: dict[str, Callable[[Any], bool]] = {
    "cluster": lambda value: isinstance(value, str),
    "started_s": _is_time,
    "ended_s": _is_time,
    "clock": lambda value: (
        isinstance(value, dict)
        and _is_time(value.get("time_s"))
        and isinstance(value.get("perf_ns"), int)
    ),
    "simulated": lambda value: isinstance(value, bool),
    "kept_s": lambda value: value is None or _is_time(value),
    "iterations": _is_count,
    "newest_cell": _is_count,
    "dropped": _is_count,
    "left_out": lambda value: value is None or _is_list(value, lambda text: isinstance(text, str)),
    "ranks": lambda value: value is None or _is_list(value, _is_rank),
    "closed": lambda value: isinstance(value, dict) and all(map(_is_count, value.values())),
}
"""Functions that return whether the value of a fact is valid; other facts are not checked."""
