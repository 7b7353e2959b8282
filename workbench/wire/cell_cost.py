"""The cost of a cell on a rank, which the rank returns from a call through ipyparallel."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CellCost:
    """The time that a cell has taken on one rank.

    Attributes
    ----------
    wall_ns
        Time during which the cell's code ran.
    cpu_ns
        CPU time of all threads of the process until the records of the cell were sent. The
        worker processes of a DataLoader are not included.
    thread_ns
        CPU time of the main thread in the cell's code.
    iterations
        Number of recorded iterations; None if the cell was not recorded.
    hooked
        Whether communication hooks of DDP models were called although the cell was not recorded.
        Such hooks cannot be removed.
    """

    wall_ns: int
    cpu_ns: int
    thread_ns: int
    iterations: int | None
    hooked: bool
