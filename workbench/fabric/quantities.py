"""Parsing and formatting of quantities such as ``340M``, ``1.36 GB`` and ``870 ms``."""

from __future__ import annotations

import math
import re
from typing import SupportsFloat

from workbench.errors import UsageError, shortened

_POWERS = {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_COUNT = re.compile(
    r"((?:\d{1,3}(?:[,_]\d{3})+|\d+)(?:\.\d+)?(?:e\+?\d+)?)\s*([KMBGT]?)", re.IGNORECASE
)
_MAX_COUNT = 1e18


def parse_count(value: object, name: str) -> int:
    """Return a positive number such as ``340_000_000``, ``3.4e8`` or ``"340M"`` as an int.

    Raises
    ------
    UsageError
        The value is not a number from 1 to 1e18.

    Examples
    --------
    >>> parse_count("340M", "parameters")
    340000000
    """
    if isinstance(value, str):
        match = _COUNT.fullmatch(value.strip())
        number = math.nan
        if match is not None:
            number = float(re.sub(r"[,_]", "", match[1])) * _POWERS[match[2].upper()]
    else:
        number = _as_float(value)
    if not 1 <= number <= _MAX_COUNT:
        raise UsageError(
            f"{name}={shortened(repr(value), 80)}: must be a number from 1 to {_MAX_COUNT:g}. "
            "Write one such as 340_000_000 or '340M'."
        )
    return round(number)


def check_positive(value: object, name: str) -> None:
    """Raise `UsageError` for a value that is not a positive, finite number."""
    number = _as_float(value)
    if not (math.isfinite(number) and number > 0):
        raise UsageError(
            f"{name}={shortened(repr(value), 80)}: must be a positive number. Write one such as 25."
        )


def _as_float(value: object) -> float:
    """Return a number as a float: NaN for any other object, infinity for a number too large."""
    if isinstance(value, bool) or not isinstance(value, SupportsFloat):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def format_quantity(value: float, unit: str) -> str:
    """Return a value with three digits and a decimal prefix.

    Parameters
    ----------
    value
        A number of 0 or more.
    unit
        ``"B"`` or ``"FLOP"`` for a unit with decimal prefixes, ``"s"`` for a time from
        microseconds to days, or empty for a plain number.

    Examples
    --------
    >>> format_quantity(1.36e9, "B"), format_quantity(0.87, "s"), format_quantity(1234, "")
    ('1.36 GB', '870 ms', '1,234')
    """
    if unit == "s":
        return _format_seconds(value)
    if not unit:
        return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
    for prefix in ("", "k", "M", "G", "T", "P"):
        if value < 999.5:
            return f"{value:.3g} {prefix}{unit}"
        value /= 1e3
    return f"{value:.3g} E{unit}"


def _format_seconds(seconds: float) -> str:
    if seconds == 0:
        return "0 s"
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.3g} min"
    hours = seconds / 3600
    return f"{hours:,.0f} h ({hours / 24:,.1f} days)" if hours >= 48 else f"{hours:.3g} h"
