"""The record of one iteration of one rank. A `Layout` names its collectives.

A record is compact binary. First come fixed numbers, which include the phases. Then come, for all
collectives, the times of submission, the times of the end, and the numbers of their buffers. Last
come the other `TIMES` of each buffer. A record of ResNet-50 with 161 gradients takes 1.9 KB. A
layout is sent once; records refer to it by number.
"""

from __future__ import annotations

import enum
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from workbench.errors import WireError

VERSION = 7
TICK_NS = 100
"""Unit of the times of collectives. 32 bits reach 429 s after the start of an iteration."""
TIMES = ("submitted", "responded", "began", "ended", "finished")
"""The times of a collective, in their order.

A rank submits the collective. Horovod responds when all ranks have submitted it; with NCCL, not
before this rank's GPU has computed the tensor. The tensor, possibly with others, is copied into a
buffer before the transfer begins, and out of the buffer after the transfer has ended. With NCCL,
the GPU measures all times except the first and the last. If only the submission and the end are
known, `responded` and `began` equal `submitted`, and `ended` equals `finished`.
"""
BUFFER_TIMES = TIMES[1:-1]
"""The times that all collectives of a buffer share."""

_FIXED = struct.Struct("<BHHIIQQ 9Q QIIH2x HIQQQ IIIQ")
_AFTER_COLUMNS = 7
"""Number of fixed numbers that are fields after the `TIMES`."""
_LIMIT = 0xFFFFFFFF
_RECORD_SHIFT = 53
"""Position of a record's index in the sort keys of collectives; a time is below it."""
_PHASES = ("data", "copy", "forward", "backward", "exposed", "optimizer", "other")
_DURATIONS = ("start", "duration", *_PHASES, "communication", "overlapped")
NUMBERS = ("cell", "index", *(f"{name}_ns" for name in _DURATIONS), "size_bytes", "tensors")
"""The fixed numbers of a record that follow its flags, in their order."""
_numbers = attrgetter(*NUMBERS)
PROGRESS = ("samples", "batch", "batches", "communication_cpu_ns")
"""The last fixed numbers."""
_progress = attrgetter(*PROGRESS)
_SIGNED_31 = ("cell", "tensors", "world_size", *PROGRESS[:3])
SIGNED = (
    dict.fromkeys(_SIGNED_31, 31)
    | {"stopped_ns": 63, "transfer_ns": 63, "messages_ns": 63, PROGRESS[3]: 63}
    | {name: 63 for name in NUMBERS if name.endswith(("_ns", "_bytes"))}
)
"""Maximum number of bits of these numbers, because columns of decoded rows are signed."""


class Flag(enum.IntFlag):
    """How to interpret the numbers of a record."""

    NONE = 0
    FORWARD_UNSEEN = 1
    """No module's forward was recorded: data and forward are both counted in `other`."""
    FIRST_OF_CELL = 2
    """The first iteration of its cell: it begins with its first batch or forward, not at a step."""
    OUTSIDE = 4
    """The record has no iteration, but collectives before, after or without optimizer steps."""
    DEVICE_TIMES = 8
    """Duration and phases were measured on the GPU's stream, not with the host's clock."""
    UNHEARD = 16
    """Some communication was not recorded: no hook can time it, or there was too much to keep."""
    OTHER_BEFORE_FORWARD = 32
    """Most of `other` lies between a step and the next forward, outside any DataLoader."""
    OTHER_BEFORE_STEP = 64
    """Most of `other` lies between the backward and the optimizer's step."""
    TRANSFERS_SEEN = 128
    """All `TIMES` of all collectives of the iteration were recorded."""
    PROFILED = 256
    """PyTorch's profiler ran or wrote a trace, which slows an iteration down."""
    LEFT_OUT = FIRST_OF_CELL | PROFILED
    """Flags of iterations that are not typical; averages leave them out."""


@dataclass
class IterationRecord:
    """One iteration of one rank, or collectives outside iterations (`Flag.OUTSIDE`).

    Times are in nanoseconds of the rank's monotonic clock.

    Attributes
    ----------
    cell
        Number of the cell, counted by the kernel.
    index
        Number of the iteration within the cell, from 0.
    start_ns, duration_ns
        From the end of the previous iteration to the end of this iteration's last step.
    data_ns, copy_ns, forward_ns, backward_ns, exposed_ns, optimizer_ns, other_ns
        The phases; they add up to `duration_ns`. Copies are from host to device.
    communication_ns
        Time during which at least one collective was submitted and not finished.
    overlapped_ns
        The part of `communication_ns` outside `exposed_ns`: training did not wait for it.
    size_bytes
        Bytes that this rank passed to collectives, after compression.
    tensors
        Number of tensors that this rank passed to collectives.
    world_size
        Ranks in the ring.
    dropped
        Iterations that this rank has dropped so far.
    layout
        Number of the `Layout` that names the collectives.
    submitted, responded, began, ended, finished
        The `TIMES` of each collective, in units of `TICK_NS` after `start_ns`.
    stopped_ns
        The part of `exposed_ns` in which training stopped for an earlier collective than the
        last, such as the average of a loss, or for a barrier. 0 if collectives ran in several
        process sets.
    transfer_ns
        The part of `exposed_ns` during which a transfer was in progress; 0 without
        `Flag.TRANSFERS_SEEN`.
    messages_ns
        The part of `exposed_ns` during which training waited for sends and receives.
    samples
        Samples that the rank trained with; 0 if unknown.
    batch, batches
        The number of the iteration's last batch in the DataLoader's pass, from 1, and the number of
        batches in the pass; 0 if unknown.
    communication_cpu_ns
        CPU time of the backend's threads until the record was made; 0 if unknown.

    Examples
    --------
    >>> durations = dict.fromkeys(
    ...     ("data_ns", "copy_ns", "exposed_ns", "optimizer_ns", "other_ns",
    ...      "communication_ns", "overlapped_ns"), 0)
    >>> record = IterationRecord(
    ...     cell=1, index=0, start_ns=0, duration_ns=30, forward_ns=10, backward_ns=20,
    ...     size_bytes=4096, tensors=1, world_size=2, **durations)
    >>> IterationRecord.unpack(record.pack()) == record
    True
    """

    cell: int
    index: int
    start_ns: int
    duration_ns: int
    data_ns: int
    copy_ns: int
    forward_ns: int
    backward_ns: int
    exposed_ns: int
    optimizer_ns: int
    other_ns: int
    communication_ns: int
    overlapped_ns: int
    size_bytes: int
    tensors: int
    world_size: int
    dropped: int = 0
    flags: Flag = Flag.NONE
    layout: int = 0
    submitted: array[int] = field(default_factory=lambda: array("I"))
    responded: array[int] = field(default_factory=lambda: array("I"))
    began: array[int] = field(default_factory=lambda: array("I"))
    ended: array[int] = field(default_factory=lambda: array("I"))
    finished: array[int] = field(default_factory=lambda: array("I"))
    stopped_ns: int = 0
    transfer_ns: int = 0
    messages_ns: int = 0
    samples: int = 0
    batch: int = 0
    batches: int = 0
    communication_cpu_ns: int = 0

    def pack(self) -> bytes:
        """Return the record as bytes."""
        times = np.array([getattr(self, name) for name in TIMES], np.uint32)
        return pack_all([self], times, Buffers.of(times, np.array([times.shape[1]])))[0]

    def _pack_fixed(self, collectives: int, buffers: int) -> bytes:
        """Return the fixed numbers as bytes."""
        return _FIXED.pack(
            VERSION,
            int(self.flags),
            collectives,
            *_numbers(self),
            min(self.dropped, _LIMIT),
            buffers,
            self.layout,
            self.world_size,
            self.stopped_ns,
            self.transfer_ns,
            self.messages_ns,
            *_progress(self),
        )

    @classmethod
    def unpack(cls, data: bytes) -> IterationRecord:
        """Read what `pack` returned.

        Raises
        ------
        WireError
            The record has another version, or is truncated.
        """
        if not data or data[0] != VERSION:
            version = data[0] if data else "nothing"
            raise WireError(
                f"Record of version {version}: this process reads version {VERSION}. "
                "Install the same version of gradient-workbench on every VM."
            )
        if len(data) < _FIXED.size:
            raise WireError(
                f"Record of {len(data)} bytes: cut short, as it has at least {_FIXED.size}."
            )
        (_, flags, count, *numbers, dropped, buffers, layout, world_size) = (
            fixed := _FIXED.unpack_from(data)
        )[:-_AFTER_COLUMNS]
        # Thousands of records arrive per second. Positional arguments are faster than keywords.
        columns = _columns(data, count, buffers)
        values = (*numbers, world_size, dropped, Flag(flags), layout, *columns)
        values += fixed[-_AFTER_COLUMNS:]
        record = cls(*values)
        if any(getattr(record, name) >> bits for name, bits in SIGNED.items()):
            raise WireError(f"Record of {len(data)} bytes: damaged, as a number is out of range.")
        return record


class Buffers(NamedTuple):
    """Which collectives of several records share a buffer.

    Attributes
    ----------
    order
        Positions of all collectives, sorted by record and buffer.
    first
        The index in `order` where each buffer begins.
    bounds
        Record ``i`` has the buffers from ``bounds[i]`` to ``bounds[i + 1]``, excluded.
    of_collective
        The number of each collective's buffer, counted from 0 in each record.
    ends
        Record ``i`` has the collectives from ``ends[i]`` to ``ends[i + 1]``, excluded.
    """

    order: npt.NDArray[np.intp]
    first: npt.NDArray[np.intp]
    bounds: list[int]
    of_collective: npt.NDArray[np.uint16]
    ends: list[int]

    @classmethod
    def of(cls, times: npt.NDArray[Any], counts: npt.NDArray[np.intp]) -> Buffers:
        """Return the buffers: collectives with the same response and end share a buffer.

        Parameters
        ----------
        times
            Of shape (`TIMES`, collectives of all records), as integers of less than 52 bits.
        counts
            Number of collectives of each record.
        """
        keys = times[1] + (np.arange(len(counts)) << _RECORD_SHIFT).repeat(counts)
        order = keys.argsort()
        sorted_keys = keys[order]
        ended = times[-2][order]
        new = np.ones(len(keys), bool)  # the first collective of a buffer
        np.not_equal(sorted_keys[1:], sorted_keys[:-1], out=new[1:])
        if ((ended[1:] != ended[:-1]) > new[1:]).any():
            # Two buffers may have the same response, but then they do not end together.
            order = np.lexsort((times[-2], keys))
            ended = times[-2][order]
            new[1:] |= ended[1:] != ended[:-1]
        first = new.nonzero()[0]
        ends = [0, *counts.cumsum().tolist()]
        bounds = first.searchsorted(ends)
        of_collective = np.empty(len(keys), np.uint16)
        of_collective[order] = new.cumsum() - (bounds[:-1] + 1).repeat(counts)
        return cls(order, first, bounds.tolist(), of_collective, ends)


def pack_all(
    records: Sequence[IterationRecord], times: npt.NDArray[np.uint32], shared: Buffers
) -> list[bytes]:
    """Return records as bytes, with `TIMES` from an array in place of the records' own times.

    Parameters
    ----------
    times
        Of shape (`TIMES`, collectives of all records).
    shared
        The buffers of these collectives.
    """
    buffers = times[1:-1].take(shared.order[shared.first], axis=1)
    submitted = times[0]
    finished = times[-1]
    of_collective = shared.of_collective
    return [
        b"".join(
            (
                record._pack_fixed(end - first, last_buffer - first_buffer),
                submitted[first:end].tobytes(),
                finished[first:end].tobytes(),
                of_collective[first:end].tobytes(),
                buffers[:, first_buffer:last_buffer].tobytes(),
            )
        )
        for record, (first, end), (first_buffer, last_buffer) in zip(
            records, pairwise(shared.ends), pairwise(shared.bounds), strict=True
        )
    ]


def _columns(data: bytes, count: int, buffers: int) -> list[array[int]]:
    """Read the `TIMES` after the fixed numbers."""
    size = _FIXED.size + count * 10 + buffers * 4 * len(BUFFER_TIMES)
    if len(data) != size:
        raise WireError(
            f"Record of {len(data)} bytes: damaged, as {count} collectives in {buffers} buffers "
            f"take {size} bytes."
        )
    start = _FIXED.size
    submitted = array("I")
    finished = array("I")
    submitted.frombytes(data[start : start + 4 * count])
    finished.frombytes(data[start + 4 * count : start + 8 * count])
    buffer = np.frombuffer(data, "<u2", count, start + 8 * count)
    times = np.frombuffer(data, "<u4", offset=start + 10 * count)
    if count and buffer.max() >= buffers:
        raise WireError(f"Record of {len(data)} bytes: damaged, as it names a missing buffer.")
    of_collective = times.reshape(len(BUFFER_TIMES), buffers)[:, buffer]
    between = [array("I", column.tobytes()) for column in of_collective]
    return [submitted, *between, finished]
