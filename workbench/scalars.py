"""`workbench.log`: values of an iteration, such as its loss, stored with its timings."""

from __future__ import annotations

import sys
from typing import Any

_MAX_LETTERS = 40


def log(**values: Any) -> None:
    """Log values of the current iteration, such as ``workbench.log(loss=loss)``.

    They are in ``to_frame()`` as columns of their names, or ``logged_NAME`` if the table has such
    a column already; the live view draws the first two. A value belongs to the iteration whose
    forward or backward has begun; between the optimizer's step and the next forward, to the
    iteration that has just ended. Of several values of one name and iteration, the last counts.
    A tensor on a GPU is copied and read later, so training never waits for it.

    Outside the ranks of a cluster, and while recording is off, nothing is logged.

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
        There are too many names, or one is too long.
    """
    numbers = {name: _number(name, value) for name, value in values.items()}
    if long := next((name for name in values if len(name) > _MAX_LETTERS), None):
        from workbench.errors import UsageError

        raise UsageError(
            f"log({long[:_MAX_LETTERS]}...): the name has {len(long)} letters. Use up to "
            f"{_MAX_LETTERS}."
        )
    session = sys.modules.get("workbench.rank.session")
    if session is not None and numbers:
        session.log(numbers)


def _number(name: str, value: Any) -> Any:
    """Return a number as a float, or a tensor of one on a GPU unchanged."""
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
