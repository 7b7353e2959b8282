"""Messages for sampling the Python lines at which a rank spends time outside all phases."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.wire.message import Message

NO_CELL = -1
"""Number of the cell in a `LineSamples` without lines: the next cell will be sampled."""


@dataclass(frozen=True)
class LineSamplesRequest(Message):
    """Asks a rank to sample the running cell; if no cell runs, all of the next cell.

    Attributes
    ----------
    seconds
        How long to sample the running cell.
    """

    seconds: float


@dataclass(frozen=True)
class LineSamples(Message):
    """Lines at which a rank's main thread was while an iteration was in no phase.

    Attributes
    ----------
    cell
        Number of the cell, or `NO_CELL`.
    lines
        Lines of the user's code, such as ``"line 3 of the cell: time.sleep(1)"``.
    spent_s
        Seconds spent at each line, including the functions that it calls.
    """

    cell: int
    lines: tuple[str, ...]
    spent_s: tuple[float, ...]
