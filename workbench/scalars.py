"""`workbench.log`: stores values of an iteration, such as its loss, with its timings."""

from __future__ import annotations

import sys
from typing import Any

_MAX_LETTERS = 40


def log(**values: Any) -> None:
    """Log values of the current iteration, such as ``workbench.log(loss=loss)``.

    Each name is a column of ``to_frame()``. The column is called ``logged_NAME`` if the table has
    a column of that name already. The live view draws the first two names.

    Once the forward or backward of an iteration has begun, values belong to that iteration.
    Between the optimizer's step and the next forward, they belong to the iteration that has just
    ended. If a name is logged several times in one iteration, the latest value is
    stored. A tensor on a GPU is copied and read later, so training never waits for it.

    Outside the ranks of a cluster, and while recording is off, the call has no effect.

    Parameters
    ----------
    values
        Up to 8 names per rank and cell, each with a number or a tensor of one element; NaN and
        infinity are allowed.

    Raises
    ------
    TypeError
        A value is not a number.
    UsageError
        There are too many names, or a name is too long.

    Examples
    --------
    >>> import workbench
    >>> workbench.log(loss=0.25, accuracy=0.9)
    >>> workbench.log(loss="low")
    Traceback (most recent call last):
        ...
    TypeError: log(loss='low'): not a number. Give a number, or a tensor of one element.
    """
    numbers = {name: _number(name, value) for name, value in values.items()}
    if long_name := next((name for name in values if len(name) > _MAX_LETTERS), None):
        from workbench.errors import UsageError

        raise UsageError(
            f"log({long_name[:_MAX_LETTERS]}...): the name has {len(long_name)} letters. Use up to "
            f"{_MAX_LETTERS}."
        )
    session = sys.modules.get("workbench.rank.session")
    if session is not None and numbers:
        session.log(numbers)


def _number(name: str, value: Any) -> Any:
    """Return a number as a float, or a tensor of one element on a GPU unchanged."""
    if type(value) is float:
        return value
    if hasattr(value, "numel") and hasattr(value, "detach"):
        if value.numel() == 1 and not value.is_complex():
            return value if value.is_cuda else float(value.detach())
        raise TypeError(
            f"log({name}=...): a tensor of shape {tuple(value.shape)} is not one number. Log its "
            f"mean, such as {name}.mean()."
        )
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(
            f"log({name}={repr(value)[:60]}): not a number. Give a number, or a tensor of one "
            "element."
        ) from None
