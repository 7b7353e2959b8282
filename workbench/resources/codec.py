"""Convert frozen dataclasses to JSON values and back, including `Unknown`.

The input may be another person's file or the answer of a remote VM: strings are made
printable, numbers must be finite, and sizes are limited.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from workbench.errors import SnapshotError, printable
from workbench.resources.unknown import Unknown

C = TypeVar("C")
_PLAIN = frozenset({str, int, float, bool, type(None)})

MAX_ITEMS = 65_536
"""Maximum number of entries of a list or mapping without a limit in its record's `MAX_ENTRIES`."""
MAX_CHARACTERS = 8_192
"""Maximum length of a string; the longest path of Linux has 4,096 characters."""
_MAX_NUMBER = 1 << 64


def encode(value: Any) -> Any:
    """Convert records, and tuples and mappings of them, to JSON values.

    An `Unknown` becomes ``{"unknown": reason}``.

    Examples
    --------
    >>> encode({"cpus": 8, "kernel": Unknown("needs root")})
    {'cpus': 8, 'kernel': {'unknown': 'needs root'}}
    """
    kind = type(value)
    if kind in _PLAIN:  # the most frequent case
        return value
    if kind is Unknown:
        return {"unknown": value.reason}
    if kind is tuple or kind is list:
        return [encode(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    names = _field_names(kind)  # type: ignore[arg-type]  # a class is hashable
    if names is not None:
        # Not asdict(): it would convert an Unknown like any other record.
        return {name: encode(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    return value


@functools.cache
def _field_names(kind: type) -> tuple[str, ...] | None:
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple(field.name for field in dataclasses.fields(kind))


def decode(cls: type[C], data: Any, where: str) -> C:
    """Create a record of `cls` from the result of `encode`.

    Parameters
    ----------
    cls
        A frozen dataclass. Its fields are plain values, records, mappings from names to one
        type, or tuples of one type or of a type for each item.
    data
        The JSON value.
    where
        Position in the file, for messages: ``"gpus[0]"``.

    Raises
    ------
    SnapshotError
        If a field without a default is missing, has the wrong type, or exceeds a limit.

    Examples
    --------
    >>> from workbench.resources.usage import MemoryUse
    >>> decode(MemoryUse, {"used_bytes": 512, "total_bytes": {"unknown": "needs root"}}, "memory")
    MemoryUse(used_bytes=512, total_bytes=Unknown(reason='needs root'))
    >>> decode(MemoryUse, {"used_bytes": 512}, "memory")
    Traceback (most recent call last):
    ...
    workbench.errors.SnapshotError: memory.total_bytes is missing: the file was cut or edited
    """
    if not isinstance(data, dict):
        raise SnapshotError(f"{where}: expected an object, found {shortened(data)}")
    hints = _hints(cls)  # type: ignore[arg-type]  # a class is hashable, whatever its instances
    limits = getattr(cls, "MAX_ENTRIES", {})
    values = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # callers give dataclasses
        position = f"{where}.{field.name}" if where else field.name
        if field.name not in data:
            if _has_default(field):  # absent in snapshots of earlier versions
                continue
            raise SnapshotError(f"{position} is missing: the file was cut or edited")
        limit = limits.get(field.name, MAX_ITEMS)
        values[field.name] = _decode_value(hints[field.name], data[field.name], position, limit)
    return cls(**values)


def _has_default(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _decode_value(hint: Any, data: Any, where: str, limit: int = MAX_ITEMS) -> Any:
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if Unknown in options and isinstance(data, dict) and set(data) == {"unknown"}:
        return Unknown(_decode_value(str, data["unknown"], f"{where}.unknown"))
    for option in options:
        if _fits(option, data):
            _check_size(data, where, limit)
            return _build(option, data, where)
    raise SnapshotError(f"{where}: expected {_name(options)}, found {shortened(data)}")


def _fits(option: Any, data: Any) -> bool:
    if option is Unknown:
        return False
    origin = get_origin(option)
    if origin is tuple:
        return isinstance(data, list)
    if origin is not None or dataclasses.is_dataclass(option):
        return isinstance(data, dict)
    if issubclass(option, Enum):
        return isinstance(data, str) and data in [member.value for member in option]
    if isinstance(data, bool):  # in Python, unlike JSON, True is a number
        return option is bool
    return isinstance(data, (int, float) if option is float else option)


def _check_size(data: Any, where: str, limit: int) -> None:
    if isinstance(data, str):
        if len(data) > MAX_CHARACTERS:
            raise SnapshotError(
                f"{where}: a text of {len(data):,} characters. At most {MAX_CHARACTERS:,} are read."
            )
    elif isinstance(data, list | dict):
        if len(data) > limit:
            raise SnapshotError(f"{where}: {len(data):,} entries. At most {limit:,} are read.")
    elif isinstance(data, float):
        if not math.isfinite(data):
            raise SnapshotError(f"{where}: a number that is not finite (NaN or Infinity)")
    elif abs(data or 0) > _MAX_NUMBER:
        raise SnapshotError(
            f"{where}: a number of {data.bit_length():,} bits. At most 64 are read."
        )


def _build(option: Any, data: Any, where: str) -> Any:
    origin = get_origin(option)
    if origin is tuple:
        first, *others = get_args(option)
        items = [first] * len(data) if others in ([], [...]) else [first, *others]
        if len(items) != len(data):
            raise SnapshotError(f"{where}: {len(data):,} entries instead of {len(items)}")
        pairs = zip(items, data, strict=True)
        return tuple(
            _decode_value(item, item_data, f"{where}[{i}]")
            for i, (item, item_data) in enumerate(pairs)
        )
    if origin is not None:
        item = get_args(option)[1]
        return {
            printable(key): _decode_value(item, value, f"{where}.{key}")
            for key, value in data.items()
        }
    if isinstance(option, type) and dataclasses.is_dataclass(option):
        return decode(option, data, where)
    if option is str:
        return printable(data)
    if issubclass(option, Enum):
        return option(data)
    return float(data) if option is float else data


def _name(options: tuple[Any, ...]) -> str:
    return " or ".join(getattr(option, "__name__", str(option)) for option in options)


def shortened(data: Any) -> str:
    """Return a value as text for a message, shortened if it is long.

    Examples
    --------
    >>> shortened("a" * 100)
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa..."
    """
    if isinstance(data, str | bytes | list | tuple):
        data = data[:60]  # the repr of 100 MB would need as much memory again
    elif isinstance(data, dict):
        data = {key: data[key] for key in list(data)[:8]}
    elif isinstance(data, int) and abs(data) > _MAX_NUMBER:
        return f"a number of {data.bit_length():,} bits"
    text = repr(data)
    return text if len(text) <= 60 else f"{text[:57]}..."
