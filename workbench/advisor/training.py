"""The kinds of training that can be explained or simulated: a cluster, its timings, or a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workbench.errors import SnapshotError, UsageError
from workbench.fabric import stored

if TYPE_CHECKING:
    from workbench.fabric import FittedFabric


def timings_of(training: object) -> Any:
    """Return the timings of a cluster; timings or a run are returned unchanged.

    Raises
    ------
    UsageError
        The object is not a cluster, timings or a run.

    Examples
    --------
    >>> timings_of(3)
    Traceback (most recent call last):
        ...
    workbench.errors.UsageError: a int: not a training that can be explained. ...
    """
    timings: Any = getattr(training, "timings", training)
    if not callable(getattr(timings, "rows", None)):
        raise UsageError(
            f"a {type(training).__name__}: not a training that can be explained. Give a cluster, "
            "its timings, or a run, such as wb.open_run(name)."
        )
    return timings


def facts_of(training: object) -> Mapping[str, Any]:
    """Return the facts that a run has stored; empty for a cluster and for timings."""
    facts = getattr(training, "facts", {})
    return facts if isinstance(facts, Mapping) else {}


def calibration_of(training: object) -> FittedFabric | None:
    """Return the calibration of a cluster, or the stored calibration of a run; None without one."""
    calibration: FittedFabric | None = getattr(training, "fabric", None)
    facts = facts_of(training)
    if calibration is None and "calibration" in facts:
        try:
            return stored.from_plain(facts["calibration"])
        except (ValueError, SnapshotError):  # an edited file
            return None
    return calibration
