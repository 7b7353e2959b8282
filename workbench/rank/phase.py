"""The phases of an iteration."""

from __future__ import annotations

import enum


class Phase(enum.IntEnum):
    """All but `GAP` end up in a record, which has them in this order."""

    DATA = 0
    COPY = 1
    FORWARD = 2
    BACKWARD = 3
    EXPOSED = 4
    OPTIMIZER = 5
    OTHER = 6
    GAP = 7
