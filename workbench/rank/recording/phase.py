"""The phases of an iteration."""

from __future__ import annotations

import enum


class Phase(enum.IntEnum):
    """The phases of a record, in its order, and `GAP`: time that is assigned to a phase later."""

    DATA = 0
    COPY = 1
    FORWARD = 2
    BACKWARD = 3
    EXPOSED = 4
    OPTIMIZER = 5
    OTHER = 6
    GAP = 7
