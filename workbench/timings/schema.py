"""Rows and records as Arrow columns, derived from their own definitions.

A file of another version may lack a column or have one more: it is read by the
names that both know, and what it lacks counts as 0.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from workbench.timings.arrivals import MARKED
from workbench.timings.store import Rows

_T = TypeVar("_T")
_TYPECODE = "I"
"""Of every array of a record."""


class _Array(Generic[_T]):
    """Stands in hints for `array`, which cannot be subscripted before Python 3.12."""


_known_hints: dict[type, dict[str, Any]] = {}
_PLAIN = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}


def row_schema() -> pa.Schema:
    """Return the columns of `arrivals.MARKED`."""
    return pa.schema([(name, pa.from_numpy_dtype(MARKED[name])) for name in MARKED.names or ()])


def schema_of(record: type, *keys: str) -> pa.Schema:
    """Return columns for whole-numbered `keys` and the fields of a dataclass.

    Raises
    ------
    TypeError
        A field's type has no column.
    """
    columns = [(key, pa.int64()) for key in keys]
    return pa.schema([*columns, *((name, _type(hint)) for name, hint in _hints(record).items())])


def rows_to_batch(rows: Rows) -> pa.RecordBatch:
    """Return rows of `arrivals.MARKED` as columns."""
    schema = row_schema()
    arrays = [pa.array(np.ascontiguousarray(rows[name])) for name in schema.names]
    return pa.record_batch(arrays, schema=schema)


def batch_to_rows(batch: pa.RecordBatch) -> Rows:
    """Return the rows that `rows_to_batch` was given."""
    rows = np.zeros(batch.num_rows, dtype=MARKED)
    for name in row_schema().names:
        if name in batch.schema.names:
            rows[name] = batch.column(name).to_numpy(zero_copy_only=False)
    return rows


def to_batch(
    record: type, keys: Mapping[str, Sequence[int]], items: Sequence[object]
) -> pa.RecordBatch:
    """Return dataclass objects as columns, behind columns of `keys`."""
    schema = schema_of(record, *keys)
    columns = [pa.array(list(values), pa.int64()) for values in keys.values()]
    for name, hint in _hints(record).items():
        values = [getattr(item, name) for item in items]
        columns.append(
            _join(values) if _is_array(hint) else pa.array(values, type=schema.field(name).type)
        )
    return pa.record_batch(columns, schema=schema)


def from_batch(record: type[_T], batch: pa.RecordBatch) -> list[_T]:
    """Return the objects that `to_batch` was given.

    The lists of one object are parallel: one that is missing is as long as the others.
    """
    hints = _hints(record)
    columns = {
        name: _values(hint, batch.column(name))
        for name, hint in hints.items()
        if name in batch.schema.names
    }
    lists = next((values for name, values in columns.items() if _is_list(hints[name])), None)
    lengths = [0] * batch.num_rows if lists is None else [len(values) for values in lists]
    for name in _required(record) - columns.keys():
        columns[name] = [_nothing(hints[name], length) for length in lengths]
    return [
        record(**dict(zip(columns, values, strict=True)))
        for values in zip(*columns.values(), strict=True)
    ]


def lengths(item: Any) -> set[int]:
    """Return the lengths of an object's lists, which are one where it is whole."""
    values = (getattr(item, name) for name, hint in _hints(type(item)).items() if _is_list(hint))
    return {len(value) for value in values}


def _hints(record: type) -> dict[str, Any]:
    if record not in _known_hints:
        hints = typing.get_type_hints(record, localns={"array": _Array})
        names = [field.name for field in dataclasses.fields(record)]
        _known_hints[record] = {name: hints[name] for name in names}
    return _known_hints[record]


def _required(record: type) -> set[str]:
    """Return the fields without a default, and those that are parallel to others."""
    return {
        field.name
        for field in dataclasses.fields(record)
        if _is_list(_hints(record)[field.name]) or field.default is dataclasses.MISSING
    }


def _type(hint: Any) -> pa.DataType:
    if _is_array(hint):
        return pa.list_(pa.from_numpy_dtype(np.dtype(_TYPECODE)))
    if _is_list(hint):
        return pa.list_(_type(typing.get_args(hint)[0]))
    plain = _plain(hint)
    if plain is None:
        raise TypeError(f"no column is known for a field of type {hint}: add it to {__name__}")
    return _PLAIN[plain]


def _plain(hint: Any) -> type | None:
    """Return the plain type that holds a value of `hint`: an enumeration's is its base."""
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        hint = next(one for one in typing.get_args(hint) if one is not type(None))
    if typing.get_origin(hint) is typing.Literal:
        hint = type(typing.get_args(hint)[0])
    return next((one for one in _PLAIN if isinstance(hint, type) and issubclass(hint, one)), None)


def _is_array(hint: Any) -> bool:
    return typing.get_origin(hint) is _Array


def _is_list(hint: Any) -> bool:
    return typing.get_origin(hint) in {_Array, tuple, list}


def _join(arrays: list[array[int]]) -> pa.Array:
    """Return arrays of numbers as one column of lists, without a Python object per number."""
    ends = np.cumsum([0, *map(len, arrays)], dtype=np.int32)
    numbers = np.frombuffer(b"".join(arrays), dtype=np.dtype(_TYPECODE))
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(numbers))


def _values(hint: Any, column: pa.Array) -> list[Any]:
    if _is_array(hint):
        return [array(_TYPECODE, row.values.to_numpy().tobytes()) for row in column]
    return [_value(hint, value) for value in column.to_pylist()]


def _value(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    if _is_list(hint):
        inner = typing.get_args(hint)[0]
        return typing.get_origin(hint)(_value(inner, one) for one in value)
    return hint(value) if isinstance(hint, type) else value


def _nothing(hint: Any, length: int) -> Any:
    """Return the value of a field that a file lacks."""
    if _is_array(hint):
        return array(_TYPECODE, bytes(array(_TYPECODE).itemsize * length))
    if _is_list(hint):
        return typing.get_origin(hint)([_nothing(typing.get_args(hint)[0], length)] * length)
    plain = _plain(hint)
    return hint(plain()) if plain is not None and isinstance(hint, type) else None
