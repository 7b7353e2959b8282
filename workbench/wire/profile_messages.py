"""Messages for profiling the ranks with PyTorch's profiler.

The kernel sends a `ProfileRequest`. A rank answers with `ProfileStarted` and `ProfileEnded`. The
kernel then reads the trace with `GetChunk`. `DropTransfer` with the number of the profile cancels
the profile, or deletes the trace.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.wire.message import Message


@dataclass(frozen=True)
class ProfileRequest(Message):
    """Asks a rank to profile the training of the running cell, or of the next cell that trains.

    Attributes
    ----------
    profile
        Number of the profile. No transfer and no cell has the same number.
    seconds
        How long to profile. The profile ends with the iteration in which this time has passed.
    iterations
        Maximum number of iterations to profile; 0 for no limit.
    """

    profile: int
    seconds: float
    iterations: int


@dataclass(frozen=True)
class ProfileStarted(Message):
    """Reports that a rank profiles a cell."""

    profile: int
    cell: int


@dataclass(frozen=True)
class ProfileEnded(Message):
    """Reports that a rank has ended a profile, and the parts of it that can be read.

    Attributes
    ----------
    cell
        Number of the cell; 0 if nothing was profiled.
    size_bytes
        Length of the trace, compressed with gzip; 0 if there is none.
    first, last
        The iterations of the cell that were profiled, both included, from 0.
    began_ns, ended_ns
        When profiling began and ended, in nanoseconds of the rank's monotonic clock.
    marks
        Two times for each slice `MARK` of the trace, one pair after the other: just before and
        just after the slice began, in nanoseconds of the rank's monotonic clock.
    note
        Unusual facts about the profile, in sentences, or an empty text.
    """

    profile: int
    cell: int
    size_bytes: int
    first: int
    last: int
    began_ns: int
    ended_ns: int
    marks: tuple[int, ...]
    note: str


MARK = "workbench clock"
"""Name of the slices that relate the clock of PyTorch's profiler to the rank's monotonic clock."""
