"""Decode many packed records at once, into columns.

`IterationRecord.unpack` decodes a single record to the same values. Records with equal numbers of
collectives and buffers form one array of a structured type.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from workbench.errors import WireError
from workbench.wire.record import BUFFER_TIMES, NUMBERS, PROGRESS, SIGNED, VERSION, IterationRecord

Columns = npt.NDArray[Any]
"""Packed records of one type. Their columns have the names of `IterationRecord`'s fields."""
Positions = npt.NDArray[np.intp]

_HEADER = [
    ("version", "u1"),
    ("flags", "<u2"),
    ("collectives", "<u2"),
    *((name, "<u8" if name.endswith(("_ns", "_bytes")) else "<u4") for name in NUMBERS),
    ("dropped", "<u4"),
    ("buffers", "<u2"),
    ("reserved", "V2"),
    ("layout", "<u2"),
    ("world_size", "<u4"),
    ("stopped_ns", "<u8"),
    ("transfer_ns", "<u8"),
    ("messages_ns", "<u8"),
    *((name, "<u8" if name.endswith("_ns") else "<u4") for name in PROGRESS),
]
"""The fixed numbers of a record, as `IterationRecord.pack` writes them."""
HEADER = np.dtype(_HEADER)
_COLLECTIVE_BYTES = 10
_BUFFER_BYTES = 4 * len(BUFFER_TIMES)
_TOP_BYTES = [
    HEADER.fields[name][1] + HEADER[name].itemsize - 1 for name in SIGNED if HEADER.fields
]
"""Offset of the most significant byte of each number in `SIGNED`; its highest bit must be 0."""


class Decoded(NamedTuple):
    """The result of `decode`.

    Attributes
    ----------
    groups
        The valid records: for each type, the position of each record and the columns.
    errors
        Why each of the other records was rejected.
    """

    groups: list[tuple[Positions, Columns]]
    errors: list[WireError]


def decode(records: Sequence[bytes]) -> Decoded:
    """Decode packed records. Records that `IterationRecord.unpack` rejects are left out."""
    by_size: dict[int, list[int]] = {}
    for position, size in enumerate(map(len, records)):
        by_size.setdefault(size, []).append(position)
    groups: list[tuple[Positions, Columns]] = []
    for size, positions in by_size.items():
        if size >= HEADER.itemsize:
            data = b"".join([records[position] for position in positions])
            groups += _decode_size(data, size, np.array(positions, np.intp))
    if sum(len(good) for good, _ in groups) == len(records):
        return Decoded(groups, [])
    valid = np.zeros(len(records), bool)
    for good, _ in groups:
        valid[good] = True
    invalid = np.flatnonzero(~valid).tolist()
    return Decoded(groups, [_error(records[position]) for position in invalid])


def _decode_size(data: bytes, size: int, positions: Positions) -> list[tuple[Positions, Columns]]:
    """Return the valid records among the records of one size."""
    header = np.frombuffer(data, _header_type(size))
    top = np.frombuffer(data, np.uint8).reshape(-1, size)[:, _TOP_BYTES]
    count = header["collectives"].astype(np.int64)
    rest = size - HEADER.itemsize - count * _COLLECTIVE_BYTES
    valid = (header["version"] == VERSION) & (top < 0x80).all(axis=1)
    valid &= rest == header["buffers"].astype(np.int64) * _BUFFER_BYTES
    groups = []
    for collectives in np.unique(count[valid]).tolist():
        buffers = (size - HEADER.itemsize - collectives * _COLLECTIVE_BYTES) // _BUFFER_BYTES
        in_group = valid & (count == collectives)
        columns = np.frombuffer(data, record_type(collectives, buffers))
        if collectives:
            in_group &= columns["buffer"].max(axis=1) < buffers
        groups.append(
            (positions, columns) if in_group.all() else (positions[in_group], columns[in_group])
        )
    return groups


def _error(record: bytes) -> WireError:
    """Return why a record is rejected."""
    try:
        IterationRecord.unpack(record)
    except WireError as error:
        return error
    raise AssertionError("`decode` and `IterationRecord.unpack` disagree on a record")


@lru_cache(maxsize=256)
def record_type(collectives: int, buffers: int) -> np.dtype[Any]:
    """Return the type of packed records with these numbers of collectives and buffers.

    Examples
    --------
    >>> record_type(collectives=1, buffers=1).names[-4:]
    ('submitted', 'finished', 'buffer', 'times')
    """
    return np.dtype(
        [
            *_HEADER,
            ("submitted", "<u4", (collectives,)),
            ("finished", "<u4", (collectives,)),
            ("buffer", "<u2", (collectives,)),
            ("times", "<u4", (len(BUFFER_TIMES), buffers)),
        ]
    )


@lru_cache(maxsize=256)
def _header_type(size: int) -> np.dtype[Any]:
    """Return the type of the fixed numbers in packed records of `size` bytes."""
    offsets = [HEADER.fields[name][1] for name, _ in _HEADER if HEADER.fields]
    names, formats = zip(*_HEADER, strict=True)
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})


def times_of(columns: Columns, name: str) -> npt.NDArray[np.uint32]:
    """Return one of the `TIMES` of each collective, of shape (records, collectives)."""
    if name not in BUFFER_TIMES:
        return np.ascontiguousarray(columns[name])
    of_buffer = np.ascontiguousarray(columns["times"][:, BUFFER_TIMES.index(name)])
    start = np.arange(len(columns))[:, np.newaxis] * of_buffer.shape[1]
    return np.asarray(of_buffer.ravel()[columns["buffer"] + start])


def unpack(columns: Columns, position: int) -> IterationRecord:
    """Return the record at a position as an object."""
    return IterationRecord.unpack(columns[position].tobytes())
