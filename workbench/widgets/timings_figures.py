"""Plotly figures of ``%timings``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.cluster import registry
from workbench.errors import RunError, UsageError
from workbench.resources import Unknown
from workbench.timings.run import open_run
from workbench.widgets.nominal import nominal_gbps
from workbench.widgets.rank_figures import ranks_figure
from workbench.widgets.sizes import sizes_figure
from workbench.widgets.views import print_unrecorded
from workbench.widgets.waterfall import waterfall_figure

if TYPE_CHECKING:
    from workbench.cluster import Cluster
    from workbench.timings.source import TimingsSource

VERBS = ("waterfall", "ranks", "collectives")


def timings_figure(cluster: Cluster | None, verb: str, words: list[str]) -> Any:
    """Return the figure of a ``%timings`` verb.

    Parameters
    ----------
    cluster
        The notebook's cluster, if any.
    verb
        One of `VERBS`.
    words
        The words after the verb: the name of a recorded run, which is drawn instead of the
        cluster, and for ``waterfall`` the number of an iteration.

    Raises
    ------
    UsageError
        The words do not fit the verb, or there is nothing to draw.
    """
    names = [word for word in words if not word.isdecimal()]
    numbers = [int(word) for word in words if word.isdecimal()]
    max_numbers = 1 if verb == "waterfall" else 0
    if len(names) > 1 or len(numbers) > max_numbers:
        number = ", and one iteration's number" if verb == "waterfall" else ""
        raise UsageError(
            f"%timings {verb} {' '.join(words)}: too many arguments. {verb} accepts the name of "
            f"one run{number}."
        )
    if names:
        cluster = None
        timings: TimingsSource = _run(names[0], f"%timings {verb} {' '.join(words)}")
    else:
        cluster = registry.required() if cluster is None else cluster
        timings = cluster.timings
        print_unrecorded(cluster)
    if verb == "waterfall":
        return waterfall_figure(timings, numbers[0] if numbers else None)
    if verb == "ranks":
        return ranks_figure(timings)
    if cluster is None:
        return sizes_figure(timings)
    nominal = nominal_gbps(cluster)
    return sizes_figure(timings, cluster.fabric, None if isinstance(nominal, Unknown) else nominal)


def _run(name: str, command: str) -> TimingsSource:
    try:
        return open_run(name)
    except RunError as error:
        raise UsageError(f"{command}: {error}") from None
