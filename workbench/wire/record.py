"""One iteration of one rank, as it travels; or collectives that are in none.

The fixed part holds the phases; behind it stand three 32-bit numbers for each
collective: submitted, last seen unfinished, first seen finished. ResNet-50's
161 gradients make 2.1 KB.
"""

from __future__ import annotations

import enum
import struct
from array import array
from dataclasses import dataclass, field

from workbench.errors import WireError

VERSION = 3
TICK_NS = 100
"""Unit of the intervals: 32 bits of it reach 429 s into an iteration."""

_FIXED = struct.Struct("<BBHIIQQ 9Q QIIB3x HIQ")
_LIMIT = 0xFFFFFFFF
_PHASES = ("data", "copy", "forward", "backward", "exposed", "optimizer", "other")
_TIMES = ("start", "duration", *_PHASES, "communication", "overlapped")
_NUMBERS = ("cell", "index", *(f"{name}_ns" for name in _TIMES), "size_bytes", "tensors")


class Flag(enum.IntFlag):
    """What a reader must know about an iteration's numbers."""

    NONE = 0
    FORWARD_UNSEEN = 1
    """No module's forward was seen: data and forward cannot be told apart, both are in other."""
    FIRST_OF_CELL = 2
    """The window begins at its first data or forward, not at the step before."""
    OUTSIDE = 4
    """No iteration: collectives that a cell ran before, after or without its steps."""
    DEVICE_TIMES = 8
    """Duration and phases are of the GPU's stream, not of the host's clock."""
    UNHEARD = 16
    """The rank communicated by torch.distributed in a way that no hook can time."""
    OTHER_BEFORE_FORWARD = 32
    """Most of `other` lies between a step and the next forward, outside any DataLoader."""
    OTHER_BEFORE_STEP = 64
    """Most of `other` lies between the backward and the optimizer's step."""


@dataclass
class IterationRecord:
    """One iteration of one rank; times in nanoseconds of the rank's monotonic clock.

    Attributes
    ----------
    cell
        Number of the cell that ran it, counted by the kernel.
    index
        Number of the iteration within the cell, from 0.
    start_ns, duration_ns
        The window from the step before to the end of this one's last step.
    data_ns, copy_ns, forward_ns, backward_ns, exposed_ns, optimizer_ns, other_ns
        The phases; they add up to `duration_ns`. Copies are from host to device.
    communication_ns
        Length of the union of [submitted, finished] over the collectives, queueing included.
    overlapped_ns
        The part of it outside the waits of `exposed_ns`.
    size_bytes
        Bytes that this rank gave to collectives, after compression.
    tensors
        Tensors in them.
    world_size
        Ranks in the ring.
    dropped
        Records that this rank has dropped so far.
    layout
        Number of the `Layout` that names the collectives.
    submitted, unfinished, finished
        Per collective, in ticks of `TICK_NS` after `start_ns`.
    stopped_ns
        The part of the waits of `exposed_ns` that is not for the last collective: for those
        before it, such as a loss that is averaged, and in barriers. 0 where the collectives went
        through several process sets.
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
    unfinished: array[int] = field(default_factory=lambda: array("I"))
    finished: array[int] = field(default_factory=lambda: array("I"))
    stopped_ns: int = 0

    def pack(self) -> bytes:
        """Return the record as bytes."""
        fixed = _FIXED.pack(
            VERSION,
            int(self.flags),
            len(self.submitted),
            *(getattr(self, name) for name in _NUMBERS),
            min(self.dropped, _LIMIT),
            0,
            self.layout,
            self.world_size,
            self.stopped_ns,
        )
        return b"".join((fixed, self.submitted, self.unfinished, self.finished))

    @classmethod
    def unpack(cls, data: bytes) -> IterationRecord:
        """Read what `pack` returned.

        Raises
        ------
        WireError
            The record has another version, or is cut short.
        """
        if not data or data[0] != VERSION:
            found = data[0] if data else "nothing"
            raise WireError(
                f"a record of version {found} arrived, this end reads version {VERSION}"
            )
        if len(data) < _FIXED.size:
            raise WireError(f"a record of {len(data)} bytes is cut short of its {_FIXED.size}")
        (_, flags, count, *numbers, dropped, _, layout, world_size, stopped) = _FIXED.unpack_from(
            data
        )
        # in the order of the fields: a kernel does this for thousands of records a second
        columns = _columns(memoryview(data), count)
        values = (*numbers, world_size, dropped, Flag(flags), layout, *columns, stopped)
        return cls(*values)


def _columns(data: memoryview, count: int) -> list[array[int]]:
    """Read the three columns of intervals behind the fixed part."""
    want = _FIXED.size + 3 * 4 * count
    if len(data) != want:
        raise WireError(f"a record with {count} collectives has {want} bytes, {len(data)} arrived")
    columns = []
    for position in range(3):
        column = array("I")
        start = _FIXED.size + 4 * count * position
        column.frombytes(data[start : start + 4 * count])
        columns.append(column)
    return columns
