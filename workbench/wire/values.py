"""Python values as bytes, to send between the kernel and the ranks.

Definitions in ``__main__`` (functions and classes of a notebook or a cell) travel by value,
everything else by reference to its module. Large buffers, such as arrays, are
neither copied nor included in the pickle.
"""

from __future__ import annotations

import io
import pickle
import sys
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate
from types import FunctionType
from typing import Any

_LARGE_BYTES = 1 << 16
"""Buffers of at least this size are not copied into the pickle, but sent separately."""
_CLOUDPICKLE = "cloudpickle.cloudpickle"


class Payload:
    """Pickled values as a sequence of bytes, which can be read and written in any order.

    Parameters
    ----------
    stream
        The pieces of the pickle, in order.
    buffers
        Buffers that the pickle refers to.

    Examples
    --------
    >>> payload = dump({"rate": 0.1})
    >>> copy = Payload.empty(payload.sizes)
    >>> copy.write(0, payload.read(0, payload.total))
    >>> load(copy, (), shared=False)
    ({'rate': 0.1}, {})
    """

    def __init__(self, stream: Sequence[Any], buffers: Sequence[Any]) -> None:
        self._count = len(stream)
        self._parts = [memoryview(piece).cast("B") for piece in (*stream, *buffers)]
        self._starts = [0, *accumulate(len(piece) for piece in self._parts)]

    @classmethod
    def empty(cls, sizes: Sequence[int]) -> Payload:
        """Return a payload of the original's `sizes`, to be filled by `write`."""
        stream, *buffers = (bytearray(size) for size in sizes)
        return cls([stream], buffers)

    @property
    def sizes(self) -> list[int]:
        """The length of the pickle, and of each buffer."""
        lengths = [len(piece) for piece in self._parts]
        return [sum(lengths[: self._count]), *lengths[self._count :]]

    @property
    def total(self) -> int:
        """The total length in bytes."""
        return self._starts[-1]

    @property
    def stream(self) -> bytes:
        """The pickle."""
        return b"".join(self._parts[: self._count])

    @property
    def buffers(self) -> list[memoryview]:
        """The buffers that the pickle refers to."""
        return self._parts[self._count :]

    def read(self, offset: int, size: int) -> tuple[bytes, ...]:
        """Return up to `size` bytes from an offset, in pieces."""
        return tuple(map(bytes, self._pieces(offset, size)))

    def write(self, offset: int, pieces: Sequence[bytes]) -> None:
        """Write the pieces that `read` returned for an offset."""
        for piece in pieces:
            data = memoryview(piece)
            for part in self._pieces(offset, len(data)):
                part[:] = data[: len(part)]
                data = data[len(part) :]
            offset += len(piece)

    def _pieces(self, offset: int, size: int) -> list[memoryview]:
        end = min(offset + size, self.total)
        pieces = []
        index = bisect_right(self._starts, offset) - 1
        while offset < end:
            first = offset - self._starts[index]
            piece = self._parts[index][first : first + end - offset]
            pieces += [piece] if len(piece) else []
            offset += len(piece)
            index += 1
        return pieces


def dump(values: Mapping[str, Any]) -> Payload:
    """Pickle values; raise the exception of the first value that cannot be pickled."""
    import cloudpickle  # type: ignore[import-untyped]

    stream = _Pieces()
    buffers: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _LARGE_BYTES:
            return True  # included in the pickle
        buffers.append(raw)
        return False

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, value: Any) -> Any:
            numpy = sys.modules.get("numpy")
            if numpy is not None and type(value) is numpy.ndarray and not value.flags.writeable:
                value = value.copy()  # otherwise it would be read-only when it arrives
                return value.__reduce_ex__(5)
            return super().reducer_override(value)

    with _ReplacedExits(pickle.PicklingError):
        Pickler(stream, protocol=5, buffer_callback=keep).dump(dict(values))
    return Payload(stream.pieces, buffers)


def load(
    payload: Payload, replaced: Collection[str], *, shared: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Unpickle values. Also return the variables of ``__main__`` that functions among them use.

    Instances of a class of ``__main__`` get this process's class of the same name, if it exists
    and its name is not in `replaced`.

    Parameters
    ----------
    payload
        The result of `dump`, in another process.
    replaced
        The names that the values will have.
    shared
        Whether functions use this process's ``__main__``. If not, each function keeps the
        variables with which it was sent, and no variables are returned.
    """
    unpickler = _Unpickler(io.BytesIO(payload.stream), payload.buffers, replaced, shared)
    with _ReplacedExits(pickle.UnpicklingError):
        values: dict[str, Any] = unpickler.load()
    return values, unpickler.needed


class _ReplacedExits:
    """Raises `kind` if a user's class raises an exception that ends processes, such as SystemExit.

    This is a class, because in a context manager that is a generator, an interrupt before the
    ``with`` block would raise GeneratorExit.
    """

    def __init__(self, kind: type[Exception]) -> None:
        self._kind = kind

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        """Replace every exception that is neither an `Exception` nor a KeyboardInterrupt."""
        if error is not None and not isinstance(error, (Exception, KeyboardInterrupt)):
            raise self._kind(f"its class raised {one_line(error)}") from error


def find_unpicklable(values: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the name and type of the first value that cannot be pickled, and the reason."""
    for name, value in values.items():
        try:
            dump({name: value})
        except Exception as error:  # noqa: BLE001 - a user's class may raise anything
            return name, type_name(value), one_line(error)
    return ", ".join(values), "values", "they cannot be pickled together"


def type_name(value: Any) -> str:
    """Return the name of a value's type, after its module unless it is `builtins` or `__main__`.

    Examples
    --------
    >>> import datetime
    >>> type_name(1), type_name(datetime.date(2026, 11, 23))
    ('int', 'datetime.date')
    """
    kind = type(value)
    is_default = kind.__module__ in {"builtins", "__main__"}
    return kind.__qualname__ if is_default else f"{kind.__module__}.{kind.__qualname__}"


def one_line(error: BaseException) -> str:
    """Return an exception's type and the first line of its message.

    Examples
    --------
    >>> one_line(ValueError("bad shape"))
    'ValueError: bad shape'
    """
    try:
        text = str(error).strip().partition("\n")[0]
    except Exception:  # noqa: BLE001 - a user's `__str__` may raise anything
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class _Pieces:
    """A file for a pickler. It keeps the written pieces; pieces that are bytes are not copied."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def write(self, data: Any) -> int:
        self.pieces.append(data if isinstance(data, bytes) else bytes(data))
        return len(self.pieces[-1])


class _Unpickler(pickle.Unpickler):
    """Unpickles the result of `dump`; the parameters are the same as of `load`."""

    def __init__(
        self, file: io.BytesIO, buffers: Sequence[Any], replaced: Collection[str], shared: bool
    ) -> None:
        super().__init__(file, buffers=buffers)
        self._shared = shared
        self._main: dict[str, Any] = sys.modules["__main__"].__dict__
        self._replaced = replaced
        self.needed: dict[str, Any] = {}
        self._reused_ids: set[int] = set()

    def find_class(self, module: str, name: str) -> Any:
        function = super().find_class(module, name)
        replacements: dict[str, Callable[[Any], Callable[..., Any]]] = {
            "_make_function": self._function_maker,
            "_function_setstate": self._function_setter,
            "_make_skeleton_class": self._class_maker,
            "_class_setstate": self._class_setter,
        }
        if module == _CLOUDPICKLE and name in replacements:
            return replacements[name](function)
        return function

    def _function_maker(self, usual: Any) -> Callable[..., Any]:
        def make(code: Any, names: dict[str, Any], *rest: Any) -> Any:
            uses_main = self._shared and names.get("__name__") == "__main__"
            if uses_main:
                return FunctionType(code, self._main, *rest)
            return usual(code, names, *rest)

        return make

    def _function_setter(self, usual: Any) -> Callable[..., Any]:
        def set_state(function: Any, state: Any) -> None:
            if function.__globals__ is self._main:
                self.needed |= state[1]["__globals__"]
                state[1]["__globals__"] = {}
            usual(function, state)

        return set_state

    def _class_maker(self, usual: Any) -> Callable[..., Any]:
        def make(kind: Any, name: str, bases: Any, options: Any, *rest: Any) -> Any:
            existing = None if name in self._replaced else self._main.get(name)
            modules = {options.get("__module__"), getattr(existing, "__module__", "")}
            is_same = isinstance(existing, type) and existing.__qualname__ == name
            if not is_same or modules != {"__main__"}:
                return usual(kind, name, bases, options, *rest)
            self._reused_ids.add(id(existing))
            return existing

        return make

    def _class_setter(self, usual: Any) -> Callable[..., Any]:
        def set_state(kind: Any, state: Any) -> Any:
            return kind if id(kind) in self._reused_ids else usual(kind, state)

        return set_state
