"""Messages of a push or pull between the kernel and a rank.

The kernel sends `PutChunk`, `GetChunk` and `DropTransfer`; a rank answers with `Chunk`. If a call
through ipyparallel asks a rank to pickle values, the rank returns `PackedValues`, `MissingNames`
or `UnpicklableValue`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.wire.message import Message


@dataclass(frozen=True)
class PutChunk(Message):
    """Sends some bytes of the pushed values to a rank; the rank answers with a `Chunk`.

    Attributes
    ----------
    transfer
        Number of the transfer. It is lower than the number of every cell.
    offset
        Position of the bytes, counted from the start of the transfer.
    sizes
        Sizes in bytes of the pickle and of each buffer of the transfer; empty unless `offset` is 0.
    data
        The bytes, in pieces.
    """

    transfer: int
    offset: int
    sizes: tuple[int, ...]
    data: tuple[bytes, ...]


@dataclass(frozen=True)
class GetChunk(Message):
    """Asks a rank for some bytes of the pulled values; the rank answers with a `Chunk`.

    Attributes
    ----------
    transfer, offset
        As for `PutChunk`.
    size
        Maximum number of bytes.
    """

    transfer: int
    offset: int
    size: int


@dataclass(frozen=True)
class Chunk(Message):
    """Confirms a `PutChunk`, without data, or answers a `GetChunk`.

    Attributes
    ----------
    transfer, offset
        As in the message that it answers.
    data
        The bytes, in pieces.
    """

    transfer: int
    offset: int
    data: tuple[bytes, ...]


@dataclass(frozen=True)
class DropTransfer(Message):
    """Allows a rank to forget the values of a transfer, by the transfer's number."""

    transfer: int


@dataclass(frozen=True)
class PackedValues:
    """Values that a rank has pickled, ready for `GetChunk`.

    Attributes
    ----------
    sizes
        Sizes in bytes of the pickle and of each buffer.
    types
        Name of each value's type, by the value's name.
    """

    sizes: Sequence[int]
    types: dict[str, str]


@dataclass(frozen=True)
class MissingNames:
    """Names that a rank does not have."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class UnpicklableValue:
    """A value that a rank cannot pickle: its name, its type, and the reason."""

    name: str
    type_name: str
    reason: str
