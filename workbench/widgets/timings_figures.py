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

SUBCOMMANDS = ("waterfall", "ranks", "collectives")


def timings_figure(cluster: Cluster | None, subcommand: str, words: list[str]) -> Any:
    """Return the figure of a ``%timings`` subcommand.

    Parameters
    ----------
    cluster
        The notebook's cluster, if any.
    subcommand
        One of `SUBCOMMANDS`.
    words
        The words after the subcommand: the name of a recorded run, which is drawn instead of the
        cluster, and for ``waterfall`` the number of an iteration.

    Raises
    ------
    UsageError
        The words do not fit the subcommand, or there is nothing to draw.
    """
    names = [word for word in words if not word.isdecimal()]
    iterations = [int(word) for word in words if word.isdecimal()]
    max_iterations = 1 if subcommand == "waterfall" else 0
    if len(names) > 1 or len(iterations) > max_iterations:
        iteration_phrase = ", and one iteration's number" if subcommand == "waterfall" else ""
        raise UsageError(
            f"%timings {subcommand} {' '.join(words)}: too many arguments. {subcommand} accepts "
            f"the name of one run{iteration_phrase}."
        )
    if names:
        cluster = None
        timings: TimingsSource = _run(names[0], f"%timings {subcommand} {' '.join(words)}")
    else:
        cluster = registry.required() if cluster is None else cluster
        timings = cluster.timings
        print_unrecorded(cluster)
    if subcommand == "waterfall":
        return waterfall_figure(timings, iterations[0] if iterations else None)
    if subcommand == "ranks":
        return ranks_figure(timings)
    if cluster is None:
        return sizes_figure(timings)
    nominal = nominal_gbps(cluster)
    return sizes_figure(timings, cluster.fabric, None if isinstance(nominal, Unknown) else nominal)


def _run(name: str, command: str) -> TimingsSource:
    """Open a recorded run; the error for an unknown run names the command."""
    try:
        return open_run(name)
    except RunError as error:
        raise UsageError(f"{command}: {error}") from None
