"""Reads what `writer` has written, as much of it as there is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from workbench.errors import printable
from workbench.timings import schema
from workbench.timings.arrivals import ALIGNED
from workbench.timings.folder import FORMAT, RunFolder
from workbench.timings.store import COLLECTIVES_LIMIT, CollectiveRecord, Rows
from workbench.timings.stream import StreamReader
from workbench.timings.writer import LAYOUT_KEYS, RECORD_KEYS
from workbench.wire import IterationRecord, Layout

_ROW_KEYS = ("iteration", "rank")
_Layouts = dict[int, tuple[int, Layout]]


class RunReader:
    """The files of a run, which may still grow.

    Attributes
    ----------
    problems
        What cannot be read, and why, as far as was looked.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.problems: list[str] = []
        self._folder = folder

    def facts(self) -> dict[str, Any]:
        """Return what was written down of what the run was."""
        try:
            facts = self._folder.read_facts()
        except (OSError, ValueError) as error:
            self._tell(f"what the run was cannot be read ({error}); its timings are here")
            return {}
        facts = self._checked(facts)
        found = facts.get("format", FORMAT)
        if found != FORMAT:
            self._tell(
                f"it was written in format {found} by gradient-workbench "
                f"{facts.get('package', 'of another version')}, this version reads format "
                f"{FORMAT}: what both know is here"
            )
        for text in facts.get("left_out") or []:
            self._tell(f"left out: {text}")
        if facts.get("dropped"):
            self._tell(f"left out: {facts['dropped']} records that ranks dropped")
        return facts

    def _checked(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Return the facts that are of their kind, in printable text; say which are not."""
        plain = _printable(facts)
        bad = [name for name in plain if not _FACTS.get(name, _anything)(plain[name])]
        if bad:
            self._tell(f"run.json was damaged or edited: {', '.join(bad)} cannot be read")
        return {name: value for name, value in plain.items() if name not in bad}

    def rows(self) -> Rows:
        """Return all rows, in order of arrival."""
        parts = [
            schema.batch_to_rows(batch)
            for number in self._folder.segments()
            for batch in self._batches("iterations", number, schema.row_schema(), _ROW_KEYS)
        ]
        return np.concatenate(parts) if parts else np.empty(0, dtype=ALIGNED)

    def records(self, first: int | None, last: int | None) -> list[CollectiveRecord]:
        """Return the records of the iterations `first` to `last`; without them, the newest."""
        limit = COLLECTIVES_LIMIT if first is None and last is None else None
        chosen: deque[tuple[int, pa.RecordBatch]] = deque()
        count = 0
        for number in self._folder.segments():
            for batch in self._record_batches(number):
                chosen.append((number, _between(batch, first, last)))
                count += chosen[-1][1].num_rows
                while limit is not None and count - chosen[0][1].num_rows >= limit:
                    count -= chosen.popleft()[1].num_rows
        # read only now: while a run is written, layouts are there before their records
        layouts = {number: self._layouts(number) for number in {number for number, _ in chosen}}
        found = [one for number, part in chosen for one in self._named(part, layouts[number])]
        return found if limit is None else found[-limit:]

    def layouts(self) -> dict[tuple[int, int], Layout]:
        """Return the layouts that the ranks used last, by rank and number."""
        return {
            (rank, layout.number): layout
            for number in self._folder.segments()
            for rank, layout in self._layouts(number).values()
        }

    def _record_batches(self, number: int) -> Iterator[pa.RecordBatch]:
        wanted = schema.schema_of(IterationRecord, *RECORD_KEYS)
        return self._batches("collectives", number, wanted, RECORD_KEYS)

    def _layouts(self, number: int) -> _Layouts:
        found: _Layouts = {}
        wanted = schema.schema_of(Layout, *LAYOUT_KEYS)
        for batch in self._batches("layouts", number, wanted, LAYOUT_KEYS):
            keys, ranks = (batch.column(name).to_pylist() for name in LAYOUT_KEYS)
            layouts = [
                replace(one, names=tuple(map(printable, one.names)))
                for one in schema.from_batch(Layout, batch)
            ]
            found |= dict(zip(keys, zip(ranks, layouts, strict=True), strict=True))
        return found

    def _named(self, batch: pa.RecordBatch, layouts: _Layouts) -> Iterator[CollectiveRecord]:
        iterations, ranks, keys = (batch.column(name).to_pylist() for name in RECORD_KEYS)
        records = schema.from_batch(IterationRecord, batch)
        for iteration, rank, key, record in zip(iterations, ranks, keys, records, strict=True):
            layout = layouts[key][1] if key in layouts else None
            # damage can leave their lists uneven, of which each has a place per collective
            if layout is not None and len(schema.lengths(layout) | schema.lengths(record)) == 1:
                yield CollectiveRecord(iteration, record, rank, layout)
            else:
                self._tell("the names of some collectives cannot be read: these are left out")

    def _batches(
        self, kind: str, number: int, wanted: pa.Schema, keys: tuple[str, ...]
    ) -> Iterator[pa.RecordBatch]:
        """Yield a file's batches with the columns that are `wanted`, as far as it has them."""
        path = self._folder.stream(kind, number)
        written = self._folder.in_use()
        facts = self.facts()
        closed = facts.get("closed") or {}
        try:
            reader = StreamReader(path)
        except OSError as error:
            if kind == "iterations" or path.name in closed:
                self._tell(f"{path.name} cannot be read: {error}")
            return
        if reader.schema is not None and self._fits(path.name, reader.schema, wanted, keys):
            yield from map(_chooser(reader.schema, wanted), reader)
        if written or (reader.closed and (not facts or "ended_s" in facts)):
            return
        if reader.rest_bytes or path.name in closed:
            whole = closed.get(path.name, reader.size_bytes)
            self._tell(
                f"{path.name} is cut short or damaged: the first "
                f"{reader.size_bytes - reader.rest_bytes} of {whole} bytes can be read"
                + (f" ({reader.problem})" if reader.problem else "")
            )
        else:
            self._tell(
                "its kernel ended without closing it (killed, out of power, or on a full disk): "
                "all that was written by then is here, usually up to the last second"
            )

    def _fits(self, name: str, found: pa.Schema, wanted: pa.Schema, keys: tuple[str, ...]) -> bool:
        """Say what differs from what this version writes; whether it can be read at all."""
        changed = [
            column
            for column in wanted.names
            if column in found.names and found.field(column).type != wanted.field(column).type
        ]
        lacks = [column for column in wanted.names if column not in found.names]
        unknown = [column for column in found.names if column not in wanted.names]
        bad = [column for column in (*changed, *lacks) if column in keys]
        if bad:
            self._tell(f"{name} is no file of a run: it has no column {', '.join(bad)} of ours")
            return False
        if changed or lacks:
            self._tell(f"{name} is of another version: no {', '.join(lacks + changed)}, 0 instead")
        if unknown:
            self._tell(f"{name} is of another version: {', '.join(unknown)} left alone")
        return True

    def _tell(self, problem: str) -> None:
        problem = printable(problem)  # it may quote the file
        if problem not in self.problems:
            self.problems.append(problem)


def _chooser(found: pa.Schema, wanted: pa.Schema) -> Any:
    """Return what keeps the columns that both schemas have alike."""
    alike = [
        name
        for name in wanted.names
        if name in found.names and found.field(name).type == wanted.field(name).type
    ]
    return lambda batch: batch.select(alike)


def _between(batch: pa.RecordBatch, first: int | None, last: int | None) -> pa.RecordBatch:
    if first is not None:
        batch = batch.filter(pc.greater_equal(batch.column("iteration"), first))
    if last is not None:
        batch = batch.filter(pc.less_equal(batch.column("iteration"), last))
    return batch


def _printable(value: Any) -> Any:
    """Return plain JSON with its texts made printable: another person's run may be opened."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(key): _printable(one) for key, one in value.items()}
    return [_printable(one) for one in value] if isinstance(value, list) else value


def _anything(_: Any) -> bool:
    return True


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value <= _LAST_S


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << 62


def _is_list(value: Any, is_item: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(is_item, value))


def _is_rank(value: Any) -> bool:
    return isinstance(value, dict) and _is_count(value.get("rank", 0))


_LAST_S = 2.0**37
"""In the year 6325: later times have no date."""
_FACTS: dict[str, Callable[[Any], bool]] = {
    "cluster": lambda value: isinstance(value, str),
    "started_s": _is_time,
    "ended_s": _is_time,
    "kept_s": lambda value: value is None or _is_time(value),
    "iterations": _is_count,
    "dropped": _is_count,
    "left_out": lambda value: value is None or _is_list(value, lambda one: isinstance(one, str)),
    "ranks": lambda value: value is None or _is_list(value, _is_rank),
    "closed": lambda value: isinstance(value, dict) and all(map(_is_count, value.values())),
}
"""What a fact must be to be read; the others are shown as they are."""
