"""`Unknown`: the value of a field that could not be read, with the reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
C = TypeVar("C")


@dataclass(frozen=True)
class Unknown:
    """Replaces a value that could not be read, instead of zero or an empty value.

    Attributes
    ----------
    reason
        Why it could not be read: ``"not reported by the driver"``, ``"needs root"``.
        In JSON: ``{"unknown": reason}``.
    """

    reason: str

    def __str__(self) -> str:
        return f"unknown ({self.reason})"


EARLIER = Unknown("the workbench that took this snapshot did not record it")
"""Default of a field that snapshots of earlier versions do not have."""


def if_known(value: T | Unknown, convert: Callable[[T], C]) -> C | Unknown:
    """Return the converted value, or the value itself if it is `Unknown`.

    Examples
    --------
    >>> if_known(13_000, lambda number: number // 1_000)
    13
    >>> if_known(Unknown("needs root"), lambda number: number // 1_000)
    Unknown(reason='needs root')
    """
    return value if isinstance(value, Unknown) else convert(value)


def number_or_unknown(value: float, reason: str) -> float | Unknown:
    """Return a number, or an `Unknown` with the given reason if it is not finite.

    Examples
    --------
    >>> number_or_unknown(float("nan"), "nothing was measured")
    Unknown(reason='nothing was measured')
    """
    return float(value) if math.isfinite(value) else Unknown(reason)
