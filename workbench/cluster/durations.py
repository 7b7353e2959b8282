"""Parse durations as users write them."""

from __future__ import annotations

import math
import re
from numbers import Real

from workbench.errors import UsageError

_UNITS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(ms|min|[smhd])\s*")


def parse_duration(value: str | float, name: str) -> float:
    """Return a duration in seconds.

    Parameters
    ----------
    value
        A text such as ``"30m"``, ``"90s"``, ``"1h30m"`` or ``"500ms"``, or a number of seconds.
    name
        The name of the option, for errors.

    Raises
    ------
    UsageError
        The value is not a duration, or not above 0.

    Examples
    --------
    >>> parse_duration("1h30m", "timeout")
    5400.0
    >>> parse_duration(2.5, "timeout")
    2.5
    >>> parse_duration("soon", "timeout")
    Traceback (most recent call last):
    ...
    workbench.errors.UsageError: timeout='soon': not a duration. Write seconds, or a time ...
    """
    seconds = _seconds(value)
    if seconds is None:
        raise UsageError(
            f"{name}={value!r}: not a duration. Write seconds, or a time such as 90s, 30m or 1h30m."
        )
    if not 0 < seconds < math.inf:
        raise UsageError(
            f"{name}={value!r}: must be above 0 and finite. Write a time such as 90s, 30m or 2h."
        )
    return seconds


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, Real | str):
        return None
    try:
        number = float(value)
    except ValueError:
        parts = _PART.findall(str(value))
        if not parts or _PART.sub("", str(value)):
            return None
        return sum(float(number) * _UNITS[unit] for number, unit in parts)
    return None if math.isnan(number) else number
