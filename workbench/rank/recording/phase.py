"""The phases of an iteration."""

from __future__ import annotations

import enum


class Phase(enum.IntEnum):
    """The phases of a record, and `GAP`: time that is assigned to a phase later.

    `MESSAGES` are the exposed waits for sends and receives; `EXPOSED` are all others.
    """

    DATA = 0
    COPY = 1
    FORWARD = 2
    BACKWARD = 3
    EXPOSED = 4
    MESSAGES = 5
    OPTIMIZER = 6
    OTHER = 7
    GAP = 8
