"""What a training is that can be explained or simulated: a cluster, its timings, or a run."""

from __future__ import annotations

from typing import Any

from workbench.errors import UsageError


def timings_of(training: object) -> Any:
    """Return the timings of a cluster; timings themselves, or a run, as they are."""
    timings: Any = getattr(training, "timings", training)
    if not callable(getattr(timings, "rows", None)):
        raise UsageError(
            f"a {type(training).__name__}: not a training that can be explained. Give a cluster, "
            "its timings, or a run, such as wb.open_run(name)."
        )
    return timings
