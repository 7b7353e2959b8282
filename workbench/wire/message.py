"""The codec of messages: dataclasses whose fields are checked before any other code uses them.

A `Message` between the kernel and a rank travels as ZeroMQ frames: version, class name, the fields
as a JSON object, then the values of the field that holds bytes, if the class has such a field.
`workbench.wire.agent_messages` uses the same checks for its lines of JSON.
"""

from __future__ import annotations

import json
import math
import operator
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import partial
from types import UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from workbench.errors import WireError

_T = TypeVar("_T")
VERSION = 2
"""Version of the messages. It is increased with every change that older versions cannot read."""
_HEADER_FRAMES = 3
_BINARY: dict[Any, tuple[float, float]] = {
    bytes: (1, 1),
    bytes | None: (0, 1),
    tuple[bytes, ...]: (0, math.inf),
}
"""Types of a field that is sent as frames, each with its minimum and maximum number of frames."""
_classes: dict[str, type[Message]] = {}
_schemas: dict[Any, _Schema] = {}

_Reader = Callable[[Any], Any]


class Message:
    """Base class of messages; `decode` finds every subclass whose module has been imported.

    A field may have any type that `from_json` supports. In addition, one field may have the type
    ``bytes``, ``bytes | None`` or ``tuple[bytes, ...]``.
    """

    def __init_subclass__(cls) -> None:
        _classes[cls.__name__] = cls

    def encode(self) -> list[bytes]:
        """Return the message as ZeroMQ frames."""
        schema = _schema(type(self))
        content = {name: getattr(self, name) for name in schema.readers}
        data = getattr(self, schema.binary) if schema.binary else None
        return [
            bytes([VERSION]),
            type(self).__name__.encode(),
            json.dumps(content, default=_plain).encode(),
            *(data if isinstance(data, tuple) else () if data is None else (data,)),
        ]

    @staticmethod
    def decode(frames: list[bytes]) -> Message:
        """Read the frames that `encode` returned.

        Raises
        ------
        WireError
            The message is incomplete, of an unknown class or another version, or one
            of its fields has a value of a wrong type.
        """
        if len(frames) < _HEADER_FRAMES or len(frames[0]) != 1:
            raise WireError(
                f"Message of {len(frames)} frames: incomplete. A message has at least "
                f"{_HEADER_FRAMES} frames."
            )
        version = frames[0][0]
        name = frames[1].decode("utf-8", "replace")
        if version != VERSION:
            raise WireError(
                f"Message of version {version}: this process reads version {VERSION}. "
                "Install the same version of gradient-workbench on every VM."
            )
        if name not in _classes:
            raise WireError(f"Message {name[:40]!r}: not known to this process.")
        try:
            return _read(_classes[name], json.loads(frames[2]), frames[_HEADER_FRAMES:])
        except (ValueError, TypeError, RecursionError) as error:
            raise WireError(f"Message {name!r}: not readable, {error}.") from error


class _Schema(NamedTuple):
    """How to read a class: a reader for each JSON field, and the name and type of the bytes field.

    The name is empty and the type None if no field has bytes.
    """

    readers: dict[str, _Reader]
    binary: str
    binary_type: Any


def _schema(cls: Any) -> _Schema:
    if cls not in _schemas:
        types = get_type_hints(cls)
        names = [field.name for field in fields(cls)]
        binary = next((name for name in names if types[name] in _BINARY), "")
        readers = {name: _reader(types[name]) for name in names if name != binary}
        _schemas[cls] = _Schema(readers, binary, types.get(binary))
    return _schemas[cls]


def _read(cls: type[Message], content: Any, frames: list[bytes]) -> Message:
    """Return the message with these fields; raise TypeError if they do not fit its class."""
    schema = _schema(cls)
    values = _read_fields(schema.readers, content, strict=True)
    min_frames, max_frames = _BINARY.get(schema.binary_type, (0, 0))
    if not min_frames <= len(frames) <= max_frames:
        raise TypeError(f"{len(frames)} binary frames arrived")
    if schema.binary_type == tuple[bytes, ...]:
        values[schema.binary] = tuple(frames)
    elif schema.binary:
        values[schema.binary] = frames[0] if frames else None
    return cls(**values)


def from_json(cls: Any, content: Any, *, strict: bool = True) -> Any:
    """Return an instance of a dataclass from a JSON object, after checking it.

    Parameters
    ----------
    cls
        The dataclass. A field may have the type int, float, str, bool, Literal, a list or a tuple
        of one type, a dictionary with keys of type int or str, a dataclass, a union of one of
        these with None, or Any.
    content
        The JSON object, with dictionaries and lists as `json.loads` returns them.
    strict
        Whether all fields must be present, and no others. If not, fields with a default may be
        missing, and unknown fields, which a later version may send, are ignored.

    Raises
    ------
    ValueError, TypeError
        A field is missing, is unknown, or has another type.

    Examples
    --------
    >>> from workbench.wire.cell_cost import CellCost
    >>> from_json(CellCost, {"wall_ns": 1, "cpu_ns": 2, "thread_ns": 1, "iterations": None,
    ...                      "hooked": "no"})
    Traceback (most recent call last):
    ...
    TypeError: hooked: 'no' is not of type bool
    """
    return cls(**_read_fields(_schema(cls).readers, content, strict=strict))


def _read_fields(readers: dict[str, _Reader], content: Any, *, strict: bool) -> dict[str, Any]:
    fields_given = _checked(dict, content)
    if strict and fields_given.keys() != readers.keys():
        differ = ", ".join(sorted(fields_given.keys() ^ readers.keys()))
        raise TypeError(f"fields are missing or unknown: {differ[:200]}")
    values = {}
    for name in readers.keys() & fields_given.keys():
        try:
            values[name] = readers[name](fields_given[name])
        except (ValueError, TypeError) as error:
            raise TypeError(f"{name}: {error}") from None
    return values


def _reader(hint: Any) -> _Reader:
    """Return a function that reads a plain JSON value as this type, or raises TypeError."""
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin in {Union, UnionType}:
        inner = _reader(arguments[0])
        return lambda value: None if value is None else inner(value)
    if origin is Literal:
        return partial(_one_of, arguments)
    if origin in {list, tuple}:
        inner = _reader(arguments[0])
        return lambda value: origin(map(inner, _checked(list, value)))
    if origin is dict:
        key = arguments[0]
        inner = _reader(arguments[1])
        return lambda value: {
            key(name): inner(item) for name, item in _checked(dict, value).items()
        }
    if is_dataclass(hint):
        return partial(from_json, hint)
    if hint is Any:
        return lambda value: value
    return _number if hint is float else partial(_checked, hint)


def _checked(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{repr(value)[:60]} is not of type {kind.__name__}")
    return value


def _one_of(choices: tuple[object, ...], value: Any) -> Any:
    if value not in choices:
        raise TypeError(f"{repr(value)[:60]} is not one of {', '.join(map(repr, choices))}")
    return value


def _number(value: Any) -> float:
    try:
        return float(value if type(value) is float else _checked(int, value))
    except OverflowError:
        raise TypeError(f"an integer of {value.bit_length():,} bits is no float") from None


def _plain(value: Any) -> Any:
    """Return the fields of a dataclass, or an integer of NumPy as int, so that JSON can hold it."""
    return vars(value) if is_dataclass(value) else operator.index(value)


class Encoder:
    """Encodes the messages that a function returns, except messages that cannot be encoded.

    Parameters
    ----------
    make
        The function. It is called again after a MemoryError, so it must not have taken anything
        out of a queue before it raises one.
    """

    def __init__(self, make: Callable[[], list[Message]]) -> None:
        self._make = make
        self._messages: list[Message] | None = None
        self._encoded = 0

    def next(self, *, last_attempt: bool = False) -> list[bytes]:
        """Return the frames of the next message, or an empty list after the last one.

        Parameters
        ----------
        last_attempt
            Whether to omit a message if there is no memory to encode it.

        Raises
        ------
        MemoryError
            There is no memory for the next message, and it is not the last attempt. Nothing was
            omitted: a later call returns the frames if there is memory by then.
        """
        if self._messages is None:
            self._messages = _result(self._make, last_attempt) or []
        while self._encoded < len(self._messages):
            frames = _result(self._messages[self._encoded].encode, last_attempt)
            self._encoded += 1
            if frames is not None:
                return frames
        return []


def _result(function: Callable[[], _T], last_attempt: bool) -> _T | None:
    """Return a function's result; None after an error, which must not end the sender's thread."""
    try:
        return function()
    except MemoryError:
        if not last_attempt:
            raise
        _print_error()
    except Exception:  # noqa: BLE001 - a user's value may raise anything
        _print_error()
    return None


def _print_error() -> None:
    with suppress(MemoryError):  # there may be no memory for the text
        traceback.print_exc()
