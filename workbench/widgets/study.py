"""Figures for study, as ``%timings`` names them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.cluster import registry
from workbench.errors import RunError, UsageError
from workbench.resources import Unknown
from workbench.timings.run import open_run
from workbench.widgets.distributions import ranks_figure
from workbench.widgets.nominal import nominal_gbps
from workbench.widgets.sizes import sizes_figure
from workbench.widgets.waterfall import waterfall_figure

if TYPE_CHECKING:
    from workbench.cluster import Cluster
    from workbench.timings.export.door import Exports

VERBS = ("waterfall", "ranks", "collectives")


def study_view(cluster: Cluster | None, verb: str, words: list[str]) -> Any:
    """Return the figure that a ``%timings`` verb asks for.

    Parameters
    ----------
    cluster
        The notebook's; None where it has none.
    verb
        One of `VERBS`.
    words
        What followed it: the name of a run on disk, to draw instead of the
        cluster; and for ``waterfall`` the number of an iteration.

    Raises
    ------
    UsageError
        The words mean nothing there, or there is nothing to draw.
    """
    names = [word for word in words if not word.isdecimal()]
    numbers = [int(word) for word in words if word.isdecimal()]
    if len(names) > 1 or len(numbers) > (verb == "waterfall"):
        also = ", and one iteration's number" if verb == "waterfall" else ""
        raise UsageError(
            f"%timings {verb} {' '.join(words)}: {verb} takes no more than the name of one run"
            f"{also}. Leave the rest out."
        )
    if names:
        cluster = None
        timings: Exports = _run(names[0], f"%timings {verb} {' '.join(words)}")
    else:
        cluster = registry.required() if cluster is None else cluster
        timings = cluster.timings
    if verb == "waterfall":
        return waterfall_figure(timings, numbers[0] if numbers else None)
    if verb == "ranks":
        return ranks_figure(timings)
    if cluster is None:
        return sizes_figure(timings)
    nominal = nominal_gbps(cluster)
    return sizes_figure(timings, cluster.fabric, None if isinstance(nominal, Unknown) else nominal)


def _run(name: str, given: str) -> Exports:
    try:
        return open_run(name)
    except RunError as error:
        raise UsageError(f"{given}: {error}") from None
