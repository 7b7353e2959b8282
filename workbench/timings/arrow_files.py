"""The Arrow files of a run: IPC streams with the columns of rows, records and layouts.

The columns are the fields of `store.ROW` and of the dataclasses. A file that another version wrote
may lack a column or have additional ones. Only the columns that both versions know are read, and a
missing value is 0.

A stream is a schema followed by batches ("IPC streaming format" of the Arrow columnar format).
A batch is written completely or not at all, so a file is valid whenever its writer ends.
"""

from __future__ import annotations

import dataclasses
import io
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from workbench.safefiles import open_regular
from workbench.timings import samples
from workbench.timings.collective_records import RecordBlock
from workbench.timings.logged import LoggedTable
from workbench.timings.store import ROW, Rows
from workbench.wire import Flag, IterationRecord
from workbench.wire.record_columns import times_of

RECORD_KEYS = ("iteration", "rank", "layout_key")
"""Columns before a record's fields; `layout_key` is the `key` of a layout of the same kernel."""
LAYOUT_KEYS = ("key", "rank")
"""Columns before a layout's fields."""
ROW_KEYS = ("iteration", "rank")
"""Columns that identify a row."""
OFFSET_COLUMNS = (*ROW_KEYS, "offset_ns", "uncertainty_ns")
"""Columns of the corrections of clock offsets."""

LOGGED = pa.schema(
    {"iteration": pa.int64(), "rank": pa.int32(), "name": pa.string(), "value": pa.float64()}
)
"""Columns of logged values; see `timings.logged`."""
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""End-of-stream marker."""
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd" if pa.Codec.is_available("zstd") else None)

_T = TypeVar("_T")
_TICKS = "array[int]"
_TYPES = {
    "int": pa.int64(),
    "Flag": pa.int64(),
    _TICKS: pa.list_(pa.uint32()),
    "tuple[int, ...]": pa.list_(pa.int64()),
    "tuple[str, ...]": pa.list_(pa.string()),
}
"""Column types of the dataclasses' fields, by their annotations."""


def row_schema(names: Sequence[str] = ROW.names or ()) -> pa.Schema:
    """Return the schema of some columns of `store.ROW`; of all columns by default.

    Examples
    --------
    >>> row_schema(["iteration", "rank"]).names
    ['iteration', 'rank']
    """
    return pa.schema([(name, pa.from_numpy_dtype(ROW[name])) for name in names])


def schema_of(record: type, *keys: str) -> pa.Schema:
    """Return the schema of integer columns `keys`, followed by the fields of a dataclass."""
    columns = [(key, pa.int64()) for key in keys]
    return pa.schema([*columns, *((name, _TYPES[kind]) for name, kind in _fields(record).items())])


SAMPLES = pa.schema(zip(samples.COLUMNS, (pa.float64(), pa.string(), pa.string()), strict=True))
"""Columns of the samples of VMs."""


def samples_to_batch(pending: Sequence[samples.Pending]) -> pa.RecordBatch:
    """Return the samples that `SampleLog.take` returned as columns."""
    columns = zip(*pending, strict=True)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, SAMPLES.types, strict=True)]
    return pa.record_batch(arrays, schema=SAMPLES)


def rows_to_batch(rows: Rows, names: Sequence[str] = ROW.names or ()) -> pa.RecordBatch:
    """Return rows as columns; all columns by default."""
    schema = row_schema(names)
    arrays = [pa.array(np.ascontiguousarray(rows[name])) for name in schema.names]
    return pa.record_batch(arrays, schema=schema)


def batch_to_rows(batch: pa.RecordBatch) -> Rows:
    """Return the rows that `rows_to_batch` converted; missing columns are 0."""
    rows = np.zeros(batch.num_rows, dtype=ROW)
    for name in set(rows.dtype.names or ()) & set(batch.schema.names):
        rows[name] = batch.column(name).to_numpy(zero_copy_only=False)
    return rows


def logged_to_batch(logged: LoggedTable) -> pa.RecordBatch:
    """Return logged values as columns."""
    values = logged.values
    names = [logged.names[number] for number in values["name"].tolist()]
    arrays = [pa.array(np.ascontiguousarray(values[name])) for name in ("iteration", "rank")]
    arrays += [pa.array(names, pa.string()), pa.array(np.ascontiguousarray(values["value"]))]
    return pa.record_batch(arrays, schema=LOGGED)


def to_batch(
    record: type, keys: Mapping[str, Sequence[int]], items: Sequence[object]
) -> pa.RecordBatch:
    """Return dataclass objects as columns, which follow the columns `keys`."""
    schema = schema_of(record, *keys)
    columns = [pa.array(list(values), pa.int64()) for values in keys.values()]
    for name, kind in _fields(record).items():
        values = [getattr(item, name) for item in items]
        columns.append(_join(values) if kind == _TICKS else pa.array(values, _TYPES[kind]))
    return pa.record_batch(columns, schema=schema)


def from_batch(record: type[_T], batch: pa.RecordBatch) -> list[_T]:
    """Return the objects that `to_batch` converted.

    Each list of an object has one item per collective. A list that the file lacks gets as
    many default values, unless the field's default is an empty list.
    """
    kinds = _fields(record)
    columns = {
        name: _values(kind, batch.column(name))
        for name, kind in kinds.items()
        if name in batch.schema.names
    }
    lists = [values for name, values in columns.items() if _is_list(kinds[name])]
    counts = [len(value) for value in lists[0]] if lists else [0] * batch.num_rows
    for name, kind in kinds.items():
        if name not in columns and getattr(record, name, None) != ():
            columns[name] = [_missing(kind, count) for count in counts]
    return [
        record(**dict(zip(columns, values, strict=True)))
        for values in zip(*columns.values(), strict=True)
    ]


def lengths(item: Any) -> set[int]:
    """Return the lengths of an object's lists; they are equal unless the file is damaged."""
    return {
        len(getattr(item, name)) for name, kind in _fields(type(item)).items() if _is_list(kind)
    }


def records_to_batch(block: RecordBlock, layout_keys: Sequence[int]) -> pa.RecordBatch:
    """Return records as the columns `RECORD_KEYS` and the fields of `IterationRecord`."""
    keys = (block.iterations, block.ranks, np.asarray(layout_keys, np.int64))
    kinds = _fields(IterationRecord)
    tick_names = [name for name, kind in kinds.items() if kind == _TICKS]
    groups = [
        (indices, block.groups[number][block.index_in_group[indices]])
        for number, indices in block.by_group()
    ]
    counts = np.zeros(len(block), np.int64)
    for indices, group in groups:
        counts[indices] = group["submitted"].shape[1]
    ends = np.cumsum(counts)
    has_equal_counts = len(set(counts.tolist())) == 1
    integer_columns = {
        name: np.empty(len(block), np.int64) for name in kinds if name not in tick_names
    }
    tick_columns = {name: np.empty(counts.sum(), np.uint32) for name in tick_names}
    for indices, group in groups:
        for name, values in integer_columns.items():
            values[indices] = group[name]
        count = group["submitted"].shape[1]
        positions = (ends - counts)[indices, np.newaxis] + np.arange(count)
        for name, values in tick_columns.items():
            # whole rows are set faster, and all records usually have the same number of collectives
            if has_equal_counts:
                values.reshape(-1, count)[indices] = times_of(group, name)
            else:
                values[positions] = times_of(group, name)
    offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
    arrays = [pa.array(np.ascontiguousarray(key)) for key in keys]
    for name in kinds:
        if name in tick_columns:
            arrays.append(pa.ListArray.from_arrays(offsets, pa.array(tick_columns[name])))
        else:
            arrays.append(pa.array(integer_columns[name]))
    return pa.record_batch(arrays, schema=schema_of(IterationRecord, *RECORD_KEYS))


def _fields(record: type) -> dict[str, str]:
    """Return the annotations of a dataclass by field name."""
    return {field.name: str(field.type) for field in dataclasses.fields(record)}


def _is_list(kind: str) -> bool:
    return bool(pa.types.is_list(_TYPES[kind]))


def _join(arrays: list[array[int]]) -> pa.Array:
    """Return arrays as one column of lists, without creating a Python object per number."""
    ends = np.cumsum([0, *map(len, arrays)], dtype=np.int32)
    numbers = np.frombuffer(b"".join(arrays), dtype=np.uint32)
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(numbers))


def _values(kind: str, column: pa.Array) -> list[Any]:
    if kind == _TICKS:
        return [array("I", row.values.to_numpy().tobytes()) for row in column]
    if kind == "Flag":
        return [Flag(value) for value in column.to_pylist()]
    return [tuple(value) if _is_list(kind) else value for value in column.to_pylist()]


def _missing(kind: str, count: int) -> Any:
    """Return the default value of a field that the file lacks."""
    if kind == _TICKS:
        return array("I", bytes(array("I").itemsize * count))
    if kind == "Flag":
        return Flag.NONE
    if not _is_list(kind):
        return 0
    return ("" if kind == "tuple[str, ...]" else 0,) * count


class StreamFile:
    """A new Arrow file that batches are appended to; `path` must not exist."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._schema = schema
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._head = len(schema.serialize())
        self.size_bytes = 0

    def append(self, batch: pa.RecordBatch) -> None:
        """Append a batch; if that raises `OSError`, the file is unchanged."""
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, self._schema, options=_OPTIONS) as writer:
            writer.write_batch(batch)
        start = self._head if self.size_bytes else 0
        self._write(sink.getbuffer()[start : -len(_END)])

    def close(self) -> None:
        """Write the end-of-stream marker and close the file."""
        try:
            if self.size_bytes:
                self._write(memoryview(_END))
        finally:
            os.close(self._file)

    def _write(self, data: memoryview) -> None:
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError:
            os.ftruncate(self._file, self.size_bytes)
            os.lseek(self._file, self.size_bytes, os.SEEK_SET)
            raise
        self.size_bytes = os.lseek(self._file, 0, os.SEEK_CUR)


class StreamReader:
    """Iterates over the readable batches of a stream; its file may still grow.

    Attributes
    ----------
    schema
        The columns of the batches; None if they cannot be read.
    size_bytes
        Size of the file when it was opened.
    closed
        After the iteration: whether the stream has an end-of-stream marker.
    rest_bytes
        Number of unreadable bytes after the last batch; set by the iteration.
    problem
        The reason why these bytes cannot be read, or an empty string.
    """

    def __init__(self, path: Path) -> None:
        self.closed = False
        self.rest_bytes = 0
        self.problem = ""
        self.schema: pa.Schema | None = None
        # a memory map would crash, because a writer truncates the file after a failed write
        file = open_regular(path)
        try:
            self._file = pa.OSFile(f"/proc/self/fd/{file}")
        finally:
            os.close(file)
        self.size_bytes = self._file.size()
        self._valid_end = 0
        message = self._next()
        if message is not None:
            try:
                # pyarrow does not check the type, and would crash the process
                if message.type != "schema":
                    raise ValueError("the file does not begin with a schema")
                schema = pa.ipc.read_schema(message)
                _ = schema.names  # decodes the names, which raises for damaged ones
            except (pa.ArrowException, OSError, ValueError) as error:
                self._set_problem(error)
            else:
                self.schema = schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if self.schema is None:
            return
        while True:
            message = self._next()
            if message is None:
                return
            try:
                batch = pa.ipc.read_record_batch(message, self.schema)
                batch.validate(full=True)
            except (pa.ArrowException, OSError) as error:
                self._set_problem(error)
                return
            yield batch

    def _next(self) -> pa.Message | None:
        """Return the next message, or None if no complete message is left."""
        self._valid_end = self._file.tell()
        try:
            return pa.ipc.read_message(self._file)
        except EOFError:
            self.closed = self._file.tell() - self._valid_end == len(_END)
        except (pa.ArrowException, OSError) as error:
            self._set_problem(error)
        return None

    def _set_problem(self, error: Exception) -> None:
        """Set `problem` and `rest_bytes` after an error in the file."""
        self.rest_bytes = self.size_bytes - self._valid_end
        self.problem = str(error)
